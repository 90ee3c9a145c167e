-- A release of Wikidata in Parquet tables, back to the JSON of entities. Placeholders are in braces.
CREATE MACRO value_json(kind, v) AS CASE kind
  WHEN 'string' THEN to_json(v.datavalue__string)
  WHEN 'wikibase-entityid' THEN json_object('entity-type', v."entity-type", 'numeric-id', v."numeric-id", 'id', v.id)
  WHEN 'time' THEN json_object('time', v."time", 'precision', v."precision".precision__integer)
  WHEN 'quantity' THEN json_object('amount', v.amount, 'unit', v.unit)
  WHEN 'monolingualtext' THEN json_object('text', v."text", 'language', v."language")
  WHEN 'globecoordinate' THEN json_object(
    'latitude', coalesce(v.latitude.latitude__number, v.latitude.latitude__integer),
    'longitude', coalesce(v.longitude.longitude__number, v.longitude.longitude__integer)) END;
CREATE MACRO snak_json(s) AS json_object(
  'snaktype', s.snaktype, 'property', s.property, 'datatype', s.datatype, 'datavalue', CASE WHEN s.snaktype = 'value'
  THEN json_object('type', s.datavalue_type, 'value', value_json(s.datavalue_type, s.datavalue)) END);
CREATE MACRO object_json(pairs) AS coalesce(to_json(map_from_entries(pairs)), '{}'::JSON);
CREATE MACRO snaks_json(groups) AS object_json(list_transform(groups,
  lambda g: struct_pack(k := g.key, v := list_transform(g."value", lambda s: snak_json(s)))));
CREATE MACRO term(l, t) AS struct_pack("language" := l, "value" := t);

-- Where pieces of 20,000 entities begin
SELECT id FROM (SELECT id, row_number() OVER (ORDER BY id) AS n FROM entities) WHERE n % {size} = 1 OR {size} = 1 ORDER BY id;

-- The entities of a piece
WITH groups AS (
  SELECT id, property, min(place) AS place, list(json_object('mainsnak', snak_json(c), 'type', 'statement',
    'id', statement_id, 'rank', "rank", 'qualifiers', snaks_json(qualifiers), 'qualifiers-order', "qualifiers-order",
    'references', {references}) ORDER BY place) AS v
  FROM claims c WHERE id >= $low AND id < $high GROUP BY ALL),
c AS (SELECT id, object_json(list(struct_pack(k := property, v := v) ORDER BY place)) AS v FROM groups GROUP BY id),
l AS (SELECT id, object_json(list(struct_pack(k := "language", v := term("language", "value")))) AS v
  FROM labels WHERE id >= $low AND id < $high GROUP BY id),
d AS (SELECT id, object_json(list(struct_pack(k := "language", v := term("language", "value")))) AS v
  FROM descriptions WHERE id >= $low AND id < $high GROUP BY id),
names AS (SELECT id, "language" AS k, list(term("language", "value") ORDER BY place) AS v
  FROM aliases WHERE id >= $low AND id < $high GROUP BY ALL),
a AS (SELECT id, object_json(list(struct_pack(k := k, v := v))) AS v FROM names GROUP BY id),
s AS (SELECT id, object_json(list(struct_pack(k := site, v := struct_pack(site := site, title := title)))) AS v
  FROM links WHERE id >= $low AND id < $high GROUP BY id)
SELECT json_object('type', "type", 'id', id, 'datatype', datatype, 'labels', coalesce(l.v, '{}'),
  'descriptions', coalesce(d.v, '{}'), 'aliases', coalesce(a.v, '{}'), 'claims', coalesce(c.v, '{}'),
  'sitelinks', coalesce(s.v, '{}'))::VARCHAR
FROM entities LEFT JOIN l USING (id) LEFT JOIN d USING (id) LEFT JOIN a USING (id) LEFT JOIN c USING (id)
LEFT JOIN s USING (id) WHERE id >= $low AND id < $high ORDER BY id;
