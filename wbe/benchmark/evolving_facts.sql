with every as (select lower(subject) as name, property_id, object_id from read_parquet($facts)
        union select lower(subject), property_id, object_id from read_parquet($static)),
    several as (select name, property_id from every group by all having count(distinct object_id) > 1)
select f.tag, f.subject_id, f.property_id, f.object_id, f.subject, f.property, f.object, f.previous_id, f.previous,
    f.statement_id, f.previous_aliases, s.enwiki as title, o.aliases as object_aliases,
    coalesce(p.description, '') as description, n.name is not null as namesake
from read_parquet($asked) f
join read_parquet($labels) s on s.id = f.subject_id and s.enwiki is not null
left join read_parquet($labels) o on o.id = f.object_id
left join read_parquet($properties) p on p.id = f.property_id
left join several n on n.name = lower(f.subject) and n.property_id = f.property_id
where f.property_id <> 'P31'
order by f.subject_id, f.property_id, f.object_id
