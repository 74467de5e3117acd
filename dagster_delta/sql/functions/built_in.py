"""The built-in functions of Spark SQL, by what they read.

Taken from Spark 4.2. A session may define more, so an unknown name is only a hint.
"""

from __future__ import annotations

from collections.abc import Mapping


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


OF_ARGUMENTS = _names("""
    abs acos acosh add_months aes_decrypt aes_encrypt aggregate array array_append array_compact
    array_contains array_distinct array_except array_insert array_intersect array_join array_max
    array_min array_position array_prepend array_remove array_repeat array_size array_sort
    array_union arrays_overlap arrays_zip ascii asin asinh atan atan2 atanh base64 between bigint
    bin binary bit_count bit_get bit_length bitmap_bit_position bitmap_bucket_number bitmap_count
    boolean bround btrim cardinality cast cbrt ceil ceiling char char_length character_length chr
    coalesce collate collation concat concat_ws contains conv convert_timezone cos cosh cot crc32
    csc date date_add date_diff date_format date_from_unix_date date_part date_sub date_trunc
    dateadd datediff datepart day dayname dayofmonth dayofweek dayofyear decimal decode degrees
    div double e element_at elt encode ends_with endswith equal_null exists exp expm1 extract
    factorial filter find_in_set flatten float floor forall format_number format_string from_csv
    from_json from_unixtime from_utc_timestamp get get_json_object getbit greatest hash hex hour
    hypot if ifnull ilike initcap instr int is_valid_utf8 is_valid_variant is_variant_null isnan
    isnotnull isnull json_array_length json_object_keys last_day lcase least left len length
    levenshtein like ln locate log log10 log1p log2 lower lpad ltrim luhn_check make_date
    make_dt_interval make_interval make_time make_timestamp make_timestamp_ltz make_timestamp_ntz
    make_valid_utf8 make_ym_interval map map_concat map_contains_key map_entries map_filter
    map_from_arrays map_from_entries map_keys map_values map_zip_with mask md5 minute mod month
    monthname months_between named_struct nanvl negative next_day nullif nullifzero nvl nvl2
    octet_length overlay parse_json parse_url pi pmod position positive pow power printf quarter
    quote radians reduce regexp regexp_count regexp_extract regexp_extract_all regexp_instr
    regexp_like regexp_replace regexp_substr repeat replace reverse right rint rlike round rpad
    rtrim schema_of_csv schema_of_json schema_of_variant sec second sentences sequence sha sha1
    sha2 shiftleft shiftright shiftrightunsigned sign signum sin sinh size slice smallint
    sort_array soundex space split split_part sqrt starts_with startswith str_to_map string struct
    substr substring substring_index tan tanh time_diff time_trunc timestamp timestamp_micros
    timestamp_millis timestamp_ntz timestamp_seconds timestampadd timestampdiff tinyint to_binary
    to_char to_csv to_date to_json to_number to_time to_timestamp to_timestamp_ltz
    to_timestamp_ntz to_unix_timestamp to_utc_timestamp to_varchar to_variant_object transform
    transform_keys transform_values translate trim trunc try_add try_aes_decrypt try_cast
    try_divide try_element_at try_make_interval try_make_timestamp try_make_timestamp_ltz
    try_make_timestamp_ntz try_mod try_multiply try_parse_json try_parse_url try_subtract
    try_to_binary try_to_date try_to_number try_to_time try_to_timestamp try_url_decode
    try_validate_utf8 try_variant_get typeof ucase unbase64 unhex unix_date unix_micros
    unix_millis unix_seconds unix_timestamp upper url_decode url_encode validate_utf8 variant_get
    weekday weekofyear width_bucket xxhash64 year zeroifnull zip_with
""")
"""Functions that compute a result from their arguments alone, for one row."""

RANDOM = _names("""
    input_file_name monotonically_increasing_id rand randn random randstr shuffle
    spark_partition_id uniform uuid
""")
"""Random functions, and functions of the partition in which Spark computes a row."""

OF_THE_SESSION = _names("""
    curdate current_catalog current_database current_date current_schema current_time
    current_timestamp current_timezone current_user localtimestamp now session_user user
""")
"""Functions of the clock and the session: one value for all rows of a statement."""

_AGGREGATES = _names("""
    any any_value approx_count_distinct approx_percentile approx_top_k approx_top_k_accumulate
    approx_top_k_combine array_agg avg bit_and bit_or bit_xor bitmap_and_agg bitmap_construct_agg
    bitmap_or_agg bool_and bool_or collect_list collect_set corr count count_if count_min_sketch
    covar_pop covar_samp every first first_value grouping grouping_id histogram_numeric
    hll_sketch_agg hll_union_agg kll_merge_agg_bigint kll_merge_agg_double kll_merge_agg_float
    kll_sketch_agg_bigint kll_sketch_agg_double kll_sketch_agg_float kurtosis last last_value
    listagg max max_by mean measure median min min_by mode percentile percentile_approx
    percentile_cont percentile_disc regr_avgx regr_avgy regr_count regr_intercept regr_r2
    regr_slope regr_sxx regr_sxy regr_syy schema_of_variant_agg skewness some std stddev
    stddev_pop stddev_samp string_agg sum theta_intersection_agg theta_sketch_agg theta_union_agg
    try_avg try_sum tuple_intersection_agg_double tuple_intersection_agg_integer
    tuple_sketch_agg_double tuple_sketch_agg_integer tuple_union_agg_double
    tuple_union_agg_integer var_pop var_samp variance
""")
_WINDOW_FUNCTIONS = _names("""
    cume_dist dense_rank lag lead nth_value ntile percent_rank rank row_number
""")
_GENERATORS = _names("""
    explode explode_outer inline inline_outer posexplode posexplode_outer stack
""")
_OTHERS = _names("""
    approx_top_k_estimate assert_true case current_path from_avro from_protobuf from_xml
    hll_sketch_estimate hll_union input_file_block_length input_file_block_start java_method
    json_tuple kll_sketch_get_n_bigint kll_sketch_get_n_double kll_sketch_get_n_float
    kll_sketch_get_quantile_bigint kll_sketch_get_quantile_double kll_sketch_get_quantile_float
    kll_sketch_get_rank_bigint kll_sketch_get_rank_double kll_sketch_get_rank_float
    kll_sketch_merge_bigint kll_sketch_merge_double kll_sketch_merge_float
    kll_sketch_to_string_bigint kll_sketch_to_string_double kll_sketch_to_string_float raise_error
    reflect schema_of_avro schema_of_xml session_window st_asbinary st_geogfromwkb st_geomfromwkb
    st_setsrid st_srid theta_difference theta_intersection theta_sketch_estimate theta_union time
    time_bucket time_from_micros time_from_millis time_from_seconds time_to_micros time_to_millis
    time_to_seconds to_avro to_protobuf to_xml try_reflect tuple_difference_double
    tuple_difference_integer tuple_difference_theta_double tuple_difference_theta_integer
    tuple_intersection_double tuple_intersection_integer tuple_intersection_theta_double
    tuple_intersection_theta_integer tuple_sketch_estimate_double tuple_sketch_estimate_integer
    tuple_sketch_summary_double tuple_sketch_summary_integer tuple_sketch_theta_double
    tuple_sketch_theta_integer tuple_union_double tuple_union_integer tuple_union_theta_double
    tuple_union_theta_integer variant_explode variant_explode_outer vector_avg
    vector_cosine_similarity vector_inner_product vector_l2_distance vector_norm vector_normalize
    vector_sum version when window window_time xpath xpath_boolean xpath_double xpath_float
    xpath_int xpath_long xpath_number xpath_short xpath_string
""")
"""Among them those that run code, read files or fail."""

_NAMES = sorted(
    OF_ARGUMENTS.union(RANDOM, OF_THE_SESSION, _AGGREGATES, _WINDOW_FUNCTIONS, _GENERATORS, _OTHERS)
)

_BY_COUNT: Mapping[tuple[int, int | None], str] = {
    (0, None): "case concat try_cast",
    (1, 1): """
        abs bigint boolean cardinality char_length character_length date date_from_unix_date
        day dayofmonth dayofweek dayofyear double float int is_variant_null isnan isnotnull
        isnull lcase len length lower month negative parse_json positive quarter sign signum
        size smallint string timestamp timestamp_micros timestamp_millis timestamp_seconds
        tinyint try_parse_json ucase unix_micros unix_millis unix_seconds upper weekday
        weekofyear year
    """,
    (1, 2): "ceil ceiling floor ltrim rtrim to_date to_timestamp trim",
    (1, None): "coalesce hour minute second",
    (2, 2): """
        array_contains contains date_format date_part date_sub date_trunc datepart div
        element_at endswith equal_null extract get ifnull left mod nullif nvl pmod right
        startswith trunc try_element_at
    """,
    (2, 3): """
        date_add date_diff datediff like replace substr substring try_variant_get
        variant_get
    """,
    (3, 3): "if make_date nvl2",
}
"""Functions of the whitelist by the minimum and maximum number of arguments; None: no maximum. Date
functions may have a unit as their first argument, which only Spark's grammar knows:
`datediff(DAY, a, b)`."""

_COUNTS = {name: count for count, names in _BY_COUNT.items() for name in names.split()}


def is_built_in(name: str) -> bool:
    """Whether Spark has a function of this name, in lower case."""
    return name in _NAMES


def similar_name(name: str) -> str | None:
    """The built-in function with the most similar name; None if none is similar."""
    import difflib

    found = difflib.get_close_matches(name, _NAMES, n=1, cutoff=0.75)
    return found[0] if found else None


def count_problem(name: str, count: int) -> str | None:
    """Why Spark refuses a call for the number of its arguments; None if it does not."""
    fewest, most = _COUNTS.get(name, (0, None))
    if count >= fewest and (most is None or count <= most):
        return None
    if most is None:
        wanted = f"{fewest} or more arguments"
    elif fewest == most:
        wanted = f"{fewest} argument{'' if fewest == 1 else 's'}"
    else:
        wanted = f"{fewest} to {most} arguments"
    return f"{name}() takes {wanted}, not {count}"


def row_problem(name: str) -> str | None:
    """Why a function cannot be used in an expression over one row; None if it can."""
    if name in _AGGREGATES:
        return f"{name}() is an aggregate, and the expression is computed for each row alone"
    if name in _WINDOW_FUNCTIONS:
        return f"{name}() needs a window of rows, and the expression is computed for each row alone"
    if name in _GENERATORS:
        return f"{name}() makes rows, and the expression is computed for each row alone"
    return None
