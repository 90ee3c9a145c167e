"""A plain reader of dumps, one entity at a time: it writes the three tables of a snapshot.

It checks the parser independently, and gives input to tests of later steps.
"""

import gzip
import json
from pathlib import Path

import pyarrow as pa

from wbe.records import (
    VALUE_TYPES,
    Label,
    Statement,
    coordinate_text,
    monolingual_text,
    quantity_text,
    time_text,
    to_table,
)
from wbe.store import write_table

ROLES = ("subject", "property", "value", "value_type", "role", "main_property", "statement_id")
TIMES = {"P580": "start", "P582": "end", "P585": "point_in_time"}


def value_text(snak: dict) -> str | None:
    "The text form of a snak's value."
    if snak["snaktype"] != "value":
        return None
    value = snak["datavalue"]["value"]
    match snak["datavalue"]["type"]:
        case "wikibase-entityid":
            return value["id"]
        case "time":
            return time_text(value["time"], value["precision"])
        case "quantity":
            return quantity_text(value["amount"], value["unit"])
        case "monolingualtext":
            return monolingual_text(value["text"], value["language"])
        case "globecoordinate":
            return coordinate_text(value["latitude"], value["longitude"])
    return value


def qwikidata_text(snak) -> str | None:
    "The text form of a snak from qwikidata, written independently from the dump's documentation."
    if snak.snaktype != "value":
        return None
    value = snak.datavalue.value
    match snak.datavalue.datatype:
        case "wikibase-entityid":
            return value["id"]
        case "time":
            return f"{value['time']}/{value['precision']}"
        case "quantity":
            return value["amount"] + ("" if value["unit"] == "1" else " " + value["unit"].split("/")[-1])
        case "monolingualtext":
            return f"{value['text']}@{value['language']}"
        case "globecoordinate":
            return f"{value['latitude']},{value['longitude']}"
    return value


def entities(dump):
    "The entities of a dump in JSON."
    with gzip.open(dump, "rt", encoding="utf-8") as f:
        for line in f:
            if line.startswith("{"):
                yield json.loads(line.rstrip().rstrip(","))


def english(words: dict) -> str | None:
    "The text in English, or in the first language that there is."
    return words.get("en", next(iter(words.values()), {})).get("value")


def plain_snapshot(dump, folder) -> Path:
    "Write statements.parquet, labels.parquet and roles.parquet of a dump into a folder."
    statements, names, roles = [], [], {name: [] for name in ROLES}
    for e in entities(dump):
        links, also = e.get("sitelinks") or {}, (e.get("aliases") or {}).get("en", [])
        words = english(e["labels"]), english(e["descriptions"]), [a["value"] for a in also]
        names.append(Label(e["id"], *words, links.get("enwiki", {}).get("title"), len(links)))
        for c in [c for group in (e["claims"] or {}).values() for c in group]:
            main, quals = c["mainsnak"], c.get("qualifiers", {})
            stated = {name: filter(None, map(value_text, quals.get(p, ()))) for p, name in TIMES.items()}
            times = {name: max(texts, default=None) for name, texts in stated.items()}  # of years with four digits
            if len(quals.get("P580", ())) > 1 and times["end"] and times["start"] > times["end"]:
                times["end"] = None  # it began again
            others = sorted(set(quals) - set(TIMES))
            statements.append(
                dict(
                    subject=e["id"],
                    property=main["property"],
                    value=value_text(main),
                    value_type=VALUE_TYPES[main["datatype"]],
                    snak=main["snaktype"],
                    rank=c["rank"],
                    has_other_qualifiers=bool(others),
                    other_qualifiers=others,
                    statement_id=c["id"],
                )
                | times
            )
            for role, groups in (("qualifier", [quals]), ("reference", [r["snaks"] for r in c.get("references", ())])):
                for snak in [
                    s for group in groups for snaks in group.values() for s in snaks if s["snaktype"] == "value"
                ]:
                    row = (
                        e["id"],
                        snak["property"],
                        value_text(snak),
                        VALUE_TYPES[snak["datatype"]],
                        role,
                        main["property"],
                        c["id"],
                    )
                    for name, value in zip(ROLES, row):
                        roles[name].append(value)
    folder = Path(folder)
    write_table(folder / "statements.parquet", to_table(statements, Statement))
    write_table(folder / "labels.parquet", to_table(names, Label))
    write_table(folder / "roles.parquet", pa.table({n: pa.array(v, pa.string()) for n, v in roles.items()}))
    return folder
