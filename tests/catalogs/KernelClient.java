import static java.nio.charset.StandardCharsets.UTF_8;

import com.fasterxml.jackson.databind.ObjectMapper;
import io.delta.kernel.DataWriteContext;
import io.delta.kernel.Operation;
import io.delta.kernel.Scan;
import io.delta.kernel.Snapshot;
import io.delta.kernel.Transaction;
import io.delta.kernel.TransactionCommitResult;
import io.delta.kernel.data.ColumnarBatch;
import io.delta.kernel.data.FilteredColumnarBatch;
import io.delta.kernel.data.Row;
import io.delta.kernel.defaults.engine.DefaultEngine;
import io.delta.kernel.defaults.internal.data.vector.DefaultGenericVector;
import io.delta.kernel.defaults.internal.json.JsonUtils;
import io.delta.kernel.engine.Engine;
import io.delta.kernel.expressions.Column;
import io.delta.kernel.internal.InternalScanFileUtils;
import io.delta.kernel.internal.data.ScanStateRow;
import io.delta.kernel.internal.types.DataTypeJsonSerDe;
import io.delta.kernel.internal.util.Utils;
import io.delta.kernel.types.StringType;
import io.delta.kernel.types.StructType;
import io.delta.kernel.unitycatalog.UCCatalogManagedClient;
import io.delta.kernel.unitycatalog.UCTableIdentifier;
import io.delta.kernel.utils.CloseableIterable;
import io.delta.kernel.utils.CloseableIterator;
import io.delta.storage.commit.TableIdentifier;
import io.delta.storage.commit.uccommitcoordinator.UCDeltaModels;
import io.delta.storage.commit.uccommitcoordinator.UCDeltaTokenBasedRestClient;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.hadoop.conf.Configuration;

/**
 * The reference's own client of tables that Unity Catalog manages: it answers each line of its
 * input, `uri token verb table [argument]`, with one line.
 */
public class KernelClient {
  private static final Engine ENGINE = DefaultEngine.create(new Configuration());
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final String ENGINE_INFO = "kernel";
  private final UCDeltaTokenBasedRestClient rest;
  private final UCCatalogManagedClient client;

  KernelClient(String uri, String token) {
    rest =
        new UCDeltaTokenBasedRestClient(
            Map.of("uri", uri, "auth.type", "static", "auth.token", token), null);
    client = new UCCatalogManagedClient(rest);
  }

  public static void main(String[] args) throws Exception {
    BufferedReader input = new BufferedReader(new InputStreamReader(System.in, UTF_8));
    PrintStream output = new PrintStream(System.out, true, UTF_8);
    for (String line = input.readLine(); line != null; line = input.readLine()) {
      String[] words = line.split(" ", 5);
      try {
        KernelClient client = new KernelClient(words[0], words[1]);
        output.println("ok " + client.run(words[2], words[3], words.length > 4 ? words[4] : ""));
      } catch (Throwable error) {
        StringBuilder said = new StringBuilder("error");
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
          said.append(" ").append(cause);
        }
        output.println(said.toString().replace('\n', ' '));
      }
    }
  }

  private String run(String verb, String name, String argument) throws Exception {
    switch (verb) {
      case "read":
        return "[" + String.join(",", read(load(name, argument))) + "]";
      case "version":
        return String.valueOf(load(name, "").getVersion());
      case "append":
        return commit(load(name, ""), argument);
      case "create":
        return create(name, DataTypeJsonSerDe.deserializeStructType(argument));
      case "set":
        return set(load(name, ""), argument.split("=", 2));
      case "unset":
        return commit(
            load(name, "")
                .buildUpdateTableTransaction(ENGINE_INFO, Operation.MANUAL_UPDATE)
                .withTablePropertiesRemoved(Set.of(argument))
                .build(ENGINE));
      case "at":
        return "[" + String.join(",", read(load(name, Optional.empty(), argument))) + "]";
      case "schema":
        return rest.loadTable(storageName(name)).getMetadata().getSchemaString();
      case "credentials":
        return JSON.writeValueAsString(rest.loadTable(storageName(name)).getStorageProperties());
      case "cluster":
        return commit(
            load(name, "")
                .buildUpdateTableTransaction(ENGINE_INFO, Operation.MANUAL_UPDATE)
                .withClusteringColumns(List.of(new Column(argument)))
                .build(ENGINE));
      case "publish":
        return String.valueOf(load(name, "").publish(ENGINE).getVersion());
      case "checkpoint":
        Snapshot snapshot = load(name, "").publish(ENGINE);
        snapshot.writeCheckpoint(ENGINE);
        return String.valueOf(snapshot.getVersion());
      default:
        throw new IllegalArgumentException(verb);
    }
  }

  private Snapshot load(String name, String version) throws Exception {
    return load(name, version.isEmpty() ? Optional.empty() : Optional.of(Long.valueOf(version)), "");
  }

  private Snapshot load(String name, Optional<Long> version, String timestamp) throws Exception {
    UCDeltaModels.TableInfo table = rest.loadTable(storageName(name));
    return client.loadSnapshot(
        ENGINE,
        table.getTableId().toString(),
        table.getLocation(),
        kernelName(name),
        version,
        timestamp.isEmpty() ? Optional.empty() : Optional.of(Long.valueOf(timestamp)));
  }

  private List<String> read(Snapshot snapshot) throws Exception {
    List<String> rows = new ArrayList<>();
    Scan scan = snapshot.getScanBuilder().build();
    Row state = scan.getScanState(ENGINE);
    StructType schema = ScanStateRow.getPhysicalDataReadSchema(state);
    try (CloseableIterator<FilteredColumnarBatch> files = scan.getScanFiles(ENGINE)) {
      while (files.hasNext()) {
        try (CloseableIterator<Row> fileRows = files.next().getRows()) {
          while (fileRows.hasNext()) {
            Row file = fileRows.next();
            CloseableIterator<ColumnarBatch> physical =
                ENGINE
                    .getParquetHandler()
                    .readParquetFiles(
                        Utils.singletonCloseableIterator(
                            InternalScanFileUtils.getAddFileStatus(file)),
                        schema,
                        Optional.empty())
                    .map(result -> result.getData());
            try (CloseableIterator<FilteredColumnarBatch> logical =
                Scan.transformPhysicalData(ENGINE, state, file, physical)) {
              while (logical.hasNext()) {
                try (CloseableIterator<Row> found = logical.next().getRows()) {
                  while (found.hasNext()) rows.add(JsonUtils.rowToJson(found.next()));
                }
              }
            }
          }
        }
      }
    }
    return rows;
  }

  private String commit(Snapshot snapshot, String rows) throws Exception {
    Transaction transaction =
        snapshot.buildUpdateTableTransaction(ENGINE_INFO, Operation.WRITE).build(ENGINE);
    Row state = transaction.getTransactionState(ENGINE);
    String[] lines = rows.split("\t");
    ColumnarBatch batch =
        ENGINE
            .getJsonHandler()
            .parseJson(
                DefaultGenericVector.fromArray(StringType.STRING, lines),
                snapshot.getSchema(),
                Optional.empty());
    CloseableIterator<FilteredColumnarBatch> physical =
        Transaction.transformLogicalData(
            ENGINE,
            state,
            Utils.singletonCloseableIterator(new FilteredColumnarBatch(batch, Optional.empty())),
            Map.of());
    DataWriteContext context = Transaction.getWriteContext(ENGINE, state, Map.of());
    CloseableIterator<Row> actions =
        Transaction.generateAppendActions(
            ENGINE,
            state,
            ENGINE
                .getParquetHandler()
                .writeParquetFiles(
                    context.getTargetDirectory(), physical, context.getStatisticsColumns()),
            context);
    TransactionCommitResult done =
        transaction.commit(ENGINE, CloseableIterable.inMemoryIterable(actions));
    return String.valueOf(done.getVersion());
  }

  private String commit(Transaction transaction) {
    return String.valueOf(
        transaction.commit(ENGINE, CloseableIterable.emptyIterable()).getVersion());
  }

  private String set(Snapshot snapshot, String[] property) {
    return commit(
        snapshot
            .buildUpdateTableTransaction(ENGINE_INFO, Operation.MANUAL_UPDATE)
            .withTablePropertiesAdded(Map.of(property[0], property[1]))
            .build(ENGINE));
  }

  private String create(String name, StructType schema) throws Exception {
    UCDeltaModels.StagingTableInfo staged = rest.createStagingTable(storageName(name));
    Map<String, String> properties = new HashMap<>(staged.getRequiredProperties());
    properties.remove(UCCatalogManagedClient.UC_TABLE_ID_KEY);
    for (String feature : staged.getRequiredProtocol().getWriterFeatures()) {
      properties.put("delta.feature." + feature, "supported");
    }
    return commit(
        client
            .buildCreateTableTransaction(
                staged.getTableId().toString(),
                staged.getLocation(),
                schema,
                ENGINE_INFO,
                kernelName(name))
            .withTableProperties(properties)
            .build(ENGINE));
  }

  private static TableIdentifier storageName(String name) {
    String[] parts = name.split("\\.");
    return new TableIdentifier(new String[] {parts[0], parts[1]}, parts[2]);
  }

  private static UCTableIdentifier kernelName(String name) {
    String[] parts = name.split("\\.");
    return new UCTableIdentifier(parts[0], parts[1], parts[2]);
  }
}
