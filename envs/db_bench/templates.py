"""The data behind db_bench's tasks: tables, their values, and templates of one skill each.

TABLES    one table per line: its name, and its columns, each with a pool of strings, `date`, or a range of numbers.
POOLS     the strings of a pool. With two lists and a bar between them: a word of each, at level 1 of the second only.
TEMPLATES the templates below each skill: their levels and SQL, then one wording per line. If level 1 is among the
          levels, the first wording is level 1's. Level 2 uses the next one, level 3 any of the rest.
          envs.db_bench.tasks.bind draws the values of names in braces.
"""

POOLS = {
    "person": """
        Ada Alan Alma Amir Anna Ben Carl Cora Dana Dean Elsa Emil Emma Eva Finn Gina Hana Hugo Ida Igor Ines
        Ivan Jack Jana Joel Juan Kai Karl Kim Lara Leo Lena Lily Lisa Luca Lucy Maja Marc Maya Mia Milo Mina
        Nick Nina Noah Nora Olga Omar Oscar Otto Paul Petra Rana Rosa Ruth Sam Sara Tara Theo Tom Vera Yara
        Zoe""",
    "thing": """red blue green small large old new light |
        lamp chair table clock shelf mirror basket bottle kettle radio""",
    "title": """silent golden distant broken hidden winter paper burning |
        river garden island tower letter forest mirror harbor""",
    "flight": """AX BK CN DL EV FR GM HT | 101 214 322 407 518 633 745 859""",
    "plant": """dwarf giant wild white red early | rose fern tulip maple basil lily poppy clover cactus orchid""",
    "pet": """Bella Rex Milo Luna Coco Max Daisy Rocky Molly Buddy Lola Toby Ruby Jasper Rosie Oscar Misty Bruno Nala
        Felix Pepper Ginger Shadow Simba Sandy Tiger Lucky Smoky Biscuit Cookie Hazel Poppy Olive Maple Honey Teddy
        Willow Ziggy Pixie Otis Gizmo Rusty""",
    "city": "Lisbon Oslo Cairo Lima Quito Delhi Paris Tokyo",
    "department": "sales support design finance legal research",
    "category": "kitchen garden office sport toys",
    "maker": "Acme Borel Corvo Dexter Elmo Fonda",
    "genre": "drama crime comedy fantasy history",
    "subject": "math music physics art biology",
    "school": "north south east west",
    "region": "coast hills plains valley islands",
    "animal": "dog cat parrot rabbit turtle",
    "colour": "black white brown grey golden",
    "airline": "Aero Blue Condor Delta Eagle",
    "team": "lions bears hawks wolves sharks",
    "position": "goalkeeper defender midfielder striker",
    "brand": "Volta Mira Tarn Orso Kestrel",
    "hotel": "Astoria Bristol Central Dolphin",
    "room": "single double suite family",
    "ward": "surgery heart children eyes general",
    "family": "shrub tree herb flower",
}

TABLES = """
employees name:person department:department city:city salary:1200-9800 age:18-75 hired:date
products product:thing category:category maker:maker price:5-900 stock:10-400 listed:date
books title:title genre:genre library:city pages:90-900 copies:1-80 bought:date
students name:person subject:subject school:school score:10-99 points:100-900 enrolled:date
sales customer:person region:region category:category quantity:1-90 amount:100-5000 sold:date
pets name:pet kind:animal colour:colour weight:1-90 age:1-70 born:date
movies title:title genre:genre studio:maker minutes:60-240 votes:100-9000 released:date
flights code:flight airline:airline origin:city distance:100-9000 seats:40-400 departs:date
players name:person team:team position:position goals:1-80 matches:10-600 joined:date
cars owner:person brand:brand colour:colour price:1000-90000 mileage:100-99000 built:date
guests guest:person hotel:hotel room:room nights:1-60 bill:80-6000 arrived:date
patients patient:person ward:ward city:city days:1-80 visits:1-70 admitted:date
plants plant:plant family:family garden:school height:5-300 age:1-90 planted:date
"""

TEMPLATES = """
select
    1 SELECT {c} FROM {t}
        {c} of all
    1 SELECT {c}, {b} FROM {t}
        {c} and {b} of all
    12 SELECT {M}({n}) FROM {t}
        {most} {n}
        What is the {most} {n} in the table?
    23 SELECT {M}({n}), COUNT(*) FROM {t}
        Give the {most} {n} and the number of rows.
        In one row: the {most} {n}, then how many rows there are.
    23 SELECT SUM({n}), AVG({m}) FROM {t}
        Give the total of {n} and the average of {m}.
        What do all values of {n} add up to, and what is the mean of {m}? Answer with one row.
    23 SELECT DISTINCT {k} FROM {t}
        List every {k} once, in the order in which they first appear.
        Which different values does {k} have? Keep the order of their first appearance.
insert
    123 INSERT INTO {t} VALUES {row}
        add {said}
        Add a row with {said}.
        A row is missing: {said}. Insert it.
    3 INSERT INTO {t} VALUES {row}, {row2}
        Insert two rows: first {said}; then {said2}.
delete
    123 DELETE FROM {t} WHERE {a} = '{p}'
        drop where {a} is {p}
        Delete the row whose {a} is {p}.
        The entry with {a} {p} should no longer be there. Remove it.
    123 DELETE FROM {t} WHERE {n} {over} {some}
        drop where {n} {over} {some}
        Delete the rows with {n} {above} {some}.
        Remove everything that has {n} {above} {some}.
    23 DELETE FROM {t} WHERE {k} = '{v}'
        Delete all rows with {k} {v}.
        Remove whatever has {v} as its {k}.
update
    123 UPDATE {t} SET {n} = {u} WHERE {a} = '{p}'
        set {n} to {u} where {a} is {p}
        Set {n} to {u} in the row whose {a} is {p}.
        Where {a} is {p}, {n} is wrong: it should be {u}. Correct it.
    123 UPDATE {t} SET {k} = '{w}' WHERE {k} = '{v}'
        set {k} to {w} where {k} is {v}
        Change {k} from {v} to {w} in every row that has it.
        Rename the {k} {v} to {w} everywhere.
    23 UPDATE {t} SET {n} = {n} + {d} WHERE {k} = '{v}'
        Raise {n} by {d} in the rows with {k} {v}.
        Every row whose {k} is {v} gets {d} more {n}.
where_single_condition
    123 SELECT {c} FROM {t} WHERE {n} {over} {some}
        {c} where {n} {over} {some}
        Give {c} of the rows with {n} {above} {some}.
        Which {c} do the rows have whose {n} is {above} {some}? Keep the table's order.
    123 SELECT {b} FROM {t} WHERE {a} = '{p}'
        {b} where {a} is {p}
        Give {b} of the row whose {a} is {p}.
        Look up {b} for the {a} {p}.
    3 SELECT {a} FROM {t} WHERE {e} > '{day}'
        Give {a} of the rows with {e} after {day}, in the table's order.
where_multiple_conditions
    123 SELECT {a} FROM {t} WHERE {k} = '{v}' AND {n} > {mid}
        {a} where {k} is {v} and {n} > {mid}
        Give {a} of the rows with {k} {v} and {n} above {mid}.
        Which {a} have {k} {v} and at the same time {n} above {mid}?
    123 SELECT {a} FROM {t} WHERE {k} = '{v}' AND {n} < {mid}
        {a} where {k} is {v} and {n} < {mid}
        Give {a} of the rows with {k} {v} and {n} below {mid}.
        Find {a} wherever {k} is {v} and {n} is under {mid}.
    23 SELECT {a}, {n} FROM {t} WHERE {n} > {low} AND {m} < {mid2} AND {k} = '{v}'
        Give {a} and {n} of the rows with {n} above {low}, {m} below {mid2} and {k} {v}.
where_nested_conditions
    123 SELECT {a} FROM {t} WHERE ({k} = '{v}' OR {k} = '{w}') AND {n} > {mid}
        {a} where {k} is {v} or {w}, and {n} > {mid}
        Give {a} of the rows whose {k} is {v} or {w} and whose {n} is above {mid}.
        Among the rows with {k} {v} or {w}, which {a} have {n} above {mid}?
    23 SELECT {a} FROM {t} WHERE {n} {over} {some} OR ({k} = '{v}' AND {m} > {mid2})
        Give {a} of the rows that have {n} {above} {some}, or both {k} {v} and {m} above {mid2}.
order_by_single_column
    1 SELECT {c} FROM {t} ORDER BY {n}{D}
        {c} by {n} {way}
    23 SELECT {c} FROM {t} ORDER BY {n}{D} LIMIT {N}
        Give {c} of the {N} rows that come first by {n}, {way}.
        Sort the table by {n} ({way}) and give {c} of the first {N} rows.
    23 SELECT {a} FROM {t} WHERE {n} {over} {some} ORDER BY {a}{D}
        Give {a} of the rows with {n} {above} {some}, sorted by {a} {way}.
order_by_multiple_columns_same_direction
    1 SELECT {a} FROM {t} ORDER BY {k}{D}, {n}{D}
        {a} by {k} and {n} {way}
    23 SELECT {a}, {k} FROM {t} ORDER BY {k}{D}, {n}{D} LIMIT {N}
        Sort by {k} and then by {n}, both {way}; give {a} and {k} of the first {N} rows.
        Give {a} and {k} of the {N} rows that lead when the table is sorted by {k}, then {n}, each {way}.
order_by_multiple_columns_different_directions
    1 SELECT {a} FROM {t} ORDER BY {k}{D}, {n}{D2}
        {a} by {k} {way} and {n} {way2}
    23 SELECT {a}, {k} FROM {t} ORDER BY {k}{D}, {n}{D2} LIMIT {N}
        Sort by {k} {way} and then by {n} {way2}; give {a} and {k} of the first {N} rows.
        With {k} {way} and, within it, {n} {way2}: {a} and {k} of the first {N} rows.
limit_only
    123 SELECT {c} FROM {t} LIMIT {N}
        first {N} {c}
        Give {c} of the first {N} rows.
        Show {c} for only the first {N} rows as they stand.
    23 SELECT {c}, {b} FROM {t} LIMIT {N}
        Give {c} and {b} of the first {N} rows.
limit_and_offset
    123 SELECT {c} FROM {t} LIMIT {N} OFFSET {O}
        {N} {c} after the first {O}
        Pass over the first {O} and give {c} of the next {N} rows.
        Begin after {O} of the rows, as they stand; of the {N} that follow, give {c}.
    23 SELECT {c}, {b} FROM {t} LIMIT {N} OFFSET {O}
        Pass over the first {O} and give {c} and {b} of the next {N} rows.
column_alias
    123 SELECT {M}({n}) AS {alias} FROM {t}
        {most} {n} as {alias}
        Give the {most} {n}, in a column called {alias}.
        Name the column {alias}: it holds the {most} {n} of the table.
    23 SELECT {a}, {n} * 2 AS {alias} FROM {t} WHERE {n} {over} {some}
        Give {a} and twice {n}, called {alias}, of the rows with {n} {above} {some}.
table_alias
    123 SELECT {s}.{c} FROM {t} AS {s} WHERE {s}.{n} {over} {some}
        {t} as {s}: {s}.{c} where {s}.{n} {over} {some}
        With {s} as an alias of the table, give {s}.{c} where {s}.{n} is {above} {some}.
        Call the table {s} in your query and give {c} of the rows whose {n} is {above} {some}.
    123 SELECT {s}.{b} FROM {t} AS {s} WHERE {s}.{a} = '{p}'
        {t} as {s}: {s}.{b} where {s}.{a} is {p}
        With {s} as an alias of the table, give {s}.{b} where {s}.{a} is {p}.
group_by_single_column
    123 SELECT {k}, COUNT(*) FROM {t} GROUP BY {k} ORDER BY {k}
        count by {k}
        Give every {k} and its number of rows, sorted by {k}.
        How many rows does each {k} have? Give {k} and number, sorted by {k}.
    123 SELECT {k}, {F}({n}) FROM {t} GROUP BY {k} ORDER BY {k}
        {what} {n} by {k}
        Give every {k} and the {what} {n} of its rows, sorted by {k}.
        For each {k}, in alphabetical order: the {k} and its {what} {n}.
group_by_multiple_columns
    1 SELECT {k}, {g}, {F}({n}) FROM {t} GROUP BY {k}, {g} ORDER BY {k}, {g}
        {what} {n} by {k} and {g}
    1 SELECT {k}, {g}, COUNT(*) FROM {t} GROUP BY {k}, {g} ORDER BY {k}, {g}
        count by {k} and {g}
    23 SELECT {k}, {g}, {F}({n}) FROM {t} GROUP BY {k}, {g} ORDER BY {k}, {g} LIMIT {N}
        For each pair of {k} and {g}, sorted by {k} and then {g}: both and the {what} {n}. Only the first {N}.
        Group by {k} and {g} and sort by them; give {k}, {g} and the {what} {n} of the first {N} groups.
having_single_condition_with_aggregate
    123 SELECT {k} FROM {t} GROUP BY {k} HAVING COUNT(*) > {count} ORDER BY {k}
        {k} with over {count} rows
        Give every {k} with a number of rows above {count}, sorted by {k}.
        Which {k} have a count of rows above {count}? Sort by {k}.
    123 SELECT {k} FROM {t} GROUP BY {k} HAVING SUM({n}) > {sum} ORDER BY {k}
        {k} with total {n} > {sum}
        Give every {k} whose rows have a total {n} above {sum}, sorted by {k}.
having_multiple_conditions_with_aggregate
    123 SELECT {k} FROM {t} GROUP BY {k} HAVING COUNT(*) > {count} AND MAX({n}) > {mid} ORDER BY {k}
        {k} with over {count} rows and highest {n} > {mid}
        Give every {k} with a number of rows above {count} and a highest {n} above {mid}, sorted by {k}.
        Which {k}, in alphabetical order, have a count of rows above {count} and reach a value of {n} above {mid}?
    123 SELECT {k} FROM {t} GROUP BY {k} HAVING SUM({n}) > {sum} AND MIN({n}) < {mid} ORDER BY {k}
        {k} with total {n} > {sum} and lowest {n} < {mid}
        Give every {k} with a total {n} above {sum} and a lowest {n} below {mid}, sorted by {k}.
having_aggregate_calculation
    123 SELECT {k} FROM {t} GROUP BY {k} HAVING MAX({n}) - MIN({n}) > {spread} ORDER BY {k}
        {k} with highest minus lowest {n} > {spread}
        Give every {k} whose highest {n} exceeds its lowest by more than {spread}, sorted by {k}.
        For which {k} is the range of {n}, highest minus lowest, more than {spread}? Sort by {k}.
    123 SELECT {k} FROM {t} GROUP BY {k} HAVING SUM({n}) / COUNT(*) > {mean} ORDER BY {k}
        {k} with total {n} per row > {mean}
        Give every {k} with a total {n}, divided by its number of rows, above {mean}. Sort by {k}.
subquery_single
    123 SELECT {c} FROM {t} WHERE {n} = (SELECT {M}({n}) FROM {t})
        {c} with the {most} {n}
        Give {c} of the row with the {most} {n}.
        Which {c} belongs to the {most} {n} of the table?
    23 SELECT COUNT(*) FROM {t} WHERE {n} > (SELECT AVG({n}) FROM {t})
        How many rows have {n} above its average?
    23 SELECT {a} FROM {t} WHERE {k} = (SELECT {k} FROM {t} WHERE {a} = '{p}')
        Give {a} of the rows that have the same {k} as {p}, and of {p} itself.
subquery_multiple
    123 SELECT {c} FROM {t} WHERE {n} = (SELECT MAX({n}) FROM {t}) OR {n} = (SELECT MIN({n}) FROM {t})
        {c} with the highest or lowest {n}
        Give {c} of the rows with the highest and the lowest {n}, in the table's order.
        In the order of the table: {c} wherever {n} is at its highest or at its lowest.
    23 SELECT {a} FROM {t} WHERE {n} > (SELECT AVG({n}) FROM {t}) AND {m} < (SELECT AVG({m}) FROM {t}) AND {k} = '{v}'
        Give {a} of the rows with {k} {v} whose {n} is above its average in the table and whose {m} is below its own.
subquery_nested
    123 SELECT {c} FROM {t} WHERE {n} = (SELECT MAX({n}) FROM {t} WHERE {n} < (SELECT MAX({n}) FROM {t}))
        {c} with the second highest {n}
        Give {c} of the row with the second highest {n}.
        Only one row has a higher {n} than this one: give its {c}.
    123 SELECT {c} FROM {t} WHERE {n} = (SELECT MIN({n}) FROM {t} WHERE {n} > (SELECT MIN({n}) FROM {t}))
        {c} with the second lowest {n}
        Give {c} of the row with the second lowest {n}.
"""
