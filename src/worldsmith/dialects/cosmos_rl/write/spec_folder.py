"""The schemas and templates of all spec forms, as the files of one folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from worldsmith.config.write.json_schema import Schema
from worldsmith.dialects.cosmos_rl.policy import MANIFEST, SCHEMA, TEMPLATE
from worldsmith.dialects.cosmos_rl.write.spec_schema import key_schema, spec_schema
from worldsmith.dialects.cosmos_rl.write.spec_tao import popular, searched_keys, tao_schema
from worldsmith.dialects.cosmos_rl.write.spec_template import spec_template
from worldsmith.dialects.translation import SpecForm

STYLES: Mapping[str, Callable[[SpecForm], Schema]] = {"json-schema": spec_schema, "tao": tao_schema}
TRAIN = "train"


def spec_files(forms: Mapping[str, Callable[[], SpecForm]], style: str) -> dict[str, str | None]:
    """Name -> text of the files, the manifest last. None: of a form that could not be written, which the manifest says.

    The texts depend on nothing but the forms and the style.
    """
    files: dict[str, str | None] = {}
    actions: dict[str, Any] = {}
    failures: dict[str, str] = {}
    for action, make in forms.items():
        paths = SCHEMA.format(action), TEMPLATE.format(action)
        try:
            form = make()
            schema, texts = key_schema(form), (as_text(STYLES[style](form)), spec_template(form, paths[1]))
        except Exception as error:  # of another package's form as well: the others are still written
            failures[action] = f"{type(error).__name__}: {error}"
            files |= dict.fromkeys(paths)
            continue
        files |= dict(zip(paths, texts, strict=True))
        searched, others = searched_keys(schema)
        actions[action] = {
            "path": paths[0],
            "spec_template": paths[1],
            "schema_action": form.name,
            "core_module": form.spec.__module__,
            "popular": popular(schema),
            "automl_default_parameters": searched,
            "automl_disabled_parameters": others,
        }
    manifest = {
        "schema_version": 1,
        "model": "cosmos-rl",
        "network_arch": "cosmos-rl",
        "style": style,
        "automl_enabled": bool(actions.get(TRAIN, {}).get("automl_default_parameters")),
        "failures": failures,
        "actions": actions,
    }
    return {**files, MANIFEST: as_text(manifest)}


def as_text(schema: Any) -> str:
    """JSON as standard readers take it. Raises ValueError for infinity."""
    return json.dumps(schema, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
