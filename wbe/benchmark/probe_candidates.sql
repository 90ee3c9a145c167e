select {category} as category, f.subject as subject_id, f.property as property_id, f.value as object_id,
    s.label as subject, p.label as property, o.label as object, {previous} as previous_id, s.enwiki as title,
    null::varchar as sentence
from read_parquet($facts) f
join read_parquet($labels) s on s.id = f.subject
join read_parquet($labels) p on p.id = f.property
join read_parquet($labels) o on o.id = f.value
where f.value_type = 'item' and s.enwiki is not null and s.label is not null and o.label is not null
    and p.label is not null {only}
order by 2, 3, 4
