"""What all components share: their schema, and how an asset is changed before it is defined."""

from __future__ import annotations

from typing import Annotated

import dagster as dg
from dagster.components.utils.translation import TranslationFn, TranslationFnResolver
from pydantic import BaseModel, ConfigDict

from dagster_delta.orchestration.components.yaml_schema import model_with_precise_errors


class DeltaComponent(dg.Component):
    """A component of this library."""

    @classmethod
    def get_spec(cls) -> dg.ComponentTypeSpec:
        """Metadata of the component for `dg`."""
        return dg.ComponentTypeSpec(tags=["delta-lake"])

    @classmethod
    def get_model_cls(cls) -> type[BaseModel] | None:
        """The attributes of a `defs.yaml`."""
        model = super().get_model_cls()
        return None if model is None else model_with_precise_errors(model)


_TRANSLATION: TranslationFnResolver[str] = TranslationFnResolver(lambda uri: {"uri": uri})
_TRANSLATION.description = (
    "Changes attributes of the assets. Templates may use `spec`, the asset as it would be, and "
    "`uri`, the location of its table."
)
_TRANSLATION.examples = [{"group_name": "lake", "key": "lake/{{ spec.key.path[-1] }}"}]


class AssetDeltaComponent(DeltaComponent, dg.Model, dg.Resolvable):
    """A component that defines assets of tables."""

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    translation: Annotated[TranslationFn[str] | None, _TRANSLATION] = None

    def get_asset_spec(self, spec: dg.AssetSpec) -> dg.AssetSpec:
        """The spec of an asset as it is defined; override it to change any of its attributes.

        By default, the attribute `translation` is applied.

        Args:
            spec: as the component derives it from its other attributes. If its table is given by
                location, that is in the metadata `dagster/uri`.
        """
        if self.translation is None:
            return spec
        return self.translation(spec, str(spec.metadata.get("dagster/uri", "")))
