"""The templates of the planner's word problems, one per paragraph: name | text | numbers | step | step ...

The number `n=2-9` is drawn from 2 to 9, `n=20-60/20` from 20, 40 and 60. A step is a description and arithmetic: {n} is
a number of the text, and a, b, ... are the results of the earlier steps.
"""

OBJECTS = """
apple bag barrel basket bench bike book bottle box brick bucket cabin cake candle card chair coat coin container cookie
cow crate desk egg goat hen jar lap marble melon pear pen pie pizza printer pumpkin rose sack seat sheep shell
shirt slice stamp sweet tent ticket tile tree truck tulip
"""  # nouns for which fresh problems have made-up words

TWO_STEPS = """
pens | {who} has {n} boxes with {m} pens each. {who} gives {k} pens away. How many pens are left?
| n=2-9 m=3-12 k=1-9 | pens in the boxes: {n}*{m} | pens left: a-{k}

cards | {who} has {n} cards and buys {m} more. Then {who} loses {k} cards. How many cards are left?
| n=5-40 m=2-20 k=1-9 | cards after buying: {n}+{m} | cards left: a-{k}

apples | {who} picks {n} apples and {other} picks {m}. They fill {k} baskets equally. How many apples are in a basket?
| n=5-40 m=5-40 k=2-9 | apples of both: {n}+{m} | apples in a basket: a/{k}

coins | {who} has {n} coins, and {other} has {m} times as many. How many coins do both have?
| n=3-40 m=2-9 | coins of the other one: {n}*{m} | coins of both: a+{n}

pages | A book has {n} pages. {who} reads {m} pages a day for {k} days. How many pages are left?
| n=40-99 m=3-12 k=2-9 | pages read: {m}*{k} | pages left: {n}-a

eggs | There are {n} hens, and each lays {m} eggs. Then {k} eggs break. How many eggs are whole?
| n=3-12 m=2-9 k=1-9 | eggs laid: {n}*{m} | whole eggs: a-{k}

tickets | A ticket costs {n} dollars. {who} buys {m} tickets and pays with {k} dollars. How much change is there?
| n=3-12 m=2-9 k=20-100/10 | price of the tickets: {n}*{m} | change: {k}-a

shells | {who} finds {n} shells on Monday and {m} on Tuesday. A shell sells for {k} dollars. How much do all bring?
| n=2-20 m=2-20 k=2-9 | shells found: {n}+{m} | money for them: a*{k}

rope | A rope is {n} meters long. {who} cuts off {m} meters and the rest into {k} equal pieces. How long is a piece?
| n=10-60 m=1-20 k=2-9 | meters that remain: {n}-{m} | meters of a piece: a/{k}

cookies | {who} bakes {n} trays of {m} cookies and fills {k} bags equally. How many cookies are in a bag?
| n=2-9 m=4-12 k=2-9 | cookies baked: {n}*{m} | cookies in a bag: a/{k}

teams | There are {n} children in {m} equal teams. Then {k} children join each team. How many children has a team?
| n=10-60 m=2-9 k=1-9 | children of a team at first: {n}/{m} | children of a team then: a+{k}

barrel | A barrel holds {n} liters. {who} pours in {m} buckets of {k} liters. How many liters does it hold now?
| n=5-50 m=2-9 k=3-12 | liters poured in: {m}*{k} | liters now: {n}+a

stamps | {who} has {n} stamps and gives half of them to {other}. Then {who} finds {m} more. How many has {who} now?
| n=4-80/2 m=1-40 | stamps kept: {n}/2 | stamps now: a+{m}

wages | {who} earns {n} dollars an hour and works {m} hours. {who} had {k} dollars before. How many dollars are there
now?
| n=5-20 m=2-9 k=5-50 | dollars earned: {n}*{m} | dollars now: a+{k}

marbles | {who} has {n} marbles, which is {m} fewer than {other} has. How many marbles do both have?
| n=5-60 m=2-30 | marbles of the other one: {n}+{m} | marbles of both: a+{n}

benches | A hall has {n} benches with {m} seats each, and {k} people sit down. How many seats are free?
| n=4-15 m=3-9 k=5-30 | seats in all: {n}*{m} | free seats: a-{k}
"""

THREE_OR_FOUR = """
baker | A baker makes {n} loaves in the morning and {m} in the afternoon. In the evening {k} loaves are left; the
others were sold for {p} dollars each. How many dollars did the baker take in?
| n=20-90 m=20-90 k=2-19 p=2-6 | loaves made: {n}+{m} | loaves sold: a-{k} | dollars taken in: b*{p}

garden | {who} plants {n} rows of {m} tulips and {k} rows of {p} roses. How many flowers does {who} plant?
| n=3-12 m=5-20 k=3-12 p=5-20 | tulips: {n}*{m} | roses: {k}*{p} | flowers: a+b

savings | {who} saves {n} dollars a week for {m} weeks and then spends {k} dollars. {other} has twice as much as {who}
has left. How many dollars has {other}?
| n=5-30 m=3-12 k=10-60 | dollars saved: {n}*{m} | dollars left: a-{k} | dollars of the other one: b*2

trip | A trip is {n} kilometers long. {who} drives {m} hours at {p} kilometers an hour and the rest at {k} kilometers
an hour. How many hours does the rest take?
| n=200-600/10 m=2-5 p=40-90/10 k=20-60/10 | kilometers of the first part: {m}*{p} | kilometers of the rest: {n}-a
| hours for the rest: b/{k}

paint | A wall is {n} meters wide and {m} meters high, and {k} square meters of it are windows. A can of paint is
enough for {p} square meters. How many cans does the wall take?
| n=4-15 m=2-6 k=1-12 p=3-9 | square meters of the wall: {n}*{m} | square meters to paint: a-{k} | cans: b/{p}

pizza | At a party {n} guests eat {m} slices of pizza each, and {who} eats {k} slices. A pizza has {p} slices. How
many pizzas do they eat?
| n=4-24 m=2-5 k=1-9 p=6-12 | slices of the guests: {n}*{m} | slices of all: a+{k} | pizzas: b/{p}

ages | {who} is {n} years old, and {other} is {m} times as old. What will their ages add up to in {k} years?
| n=4-18 m=2-4 k=2-15 | age of the older one: {n}*{m} | ages added up now: a+{n} | years that both gain: {k}*2
| ages added up then: b+c

clothes | A shirt costs {n} dollars, and a coat costs {m} dollars more. What do {p} shirts and {k} coats cost?
| n=8-30 m=10-60 p=2-6 k=2-5 | price of a coat: {n}+{m} | price of the shirts: {p}*{n} | price of the coats: {k}*a
| price of all: b+c

sale | A tent costs {n} dollars and is {m} percent cheaper today. {who} pays with {k} dollars. How much change is
there?
| n=40-240/20 m=5-50/5 k=100-300/50 | dollars off: {n}*{m}/100 | price today: {n}-a | change: {k}-b

tiles | A floor is {n} meters long and {m} meters wide. A square meter takes {k} tiles, and there are {p} tiles in a
box. How many boxes does the floor take?
| n=3-12 m=3-9 k=4-25 p=6-30/2 | square meters: {n}*{m} | tiles: a*{k} | boxes: b/{p}

market | {who} buys {n} melons at {m} dollars each and {k} pumpkins at {p} dollars each, and pays with {q} dollars.
How much change is there?
| n=2-9 m=2-7 k=2-9 p=2-8 q=50-150/10 | price of the melons: {n}*{m} | price of the pumpkins: {k}*{p}
| price of all: a+b | change: {q}-c

school | A school has {n} classes of {m} pupils. On a day when {k} pupils are ill, the others go hiking in groups of
{p}. How many groups are there?
| n=4-12 m=15-30 k=3-30 p=4-12 | pupils: {n}*{m} | pupils who hike: a-{k} | groups: b/{p}

laps | {who} runs {n} laps on Monday and {k} laps more on Tuesday. A lap has {m} meters. How many meters are that in
all?
| n=3-15 m=200-800/50 k=2-9 | laps on Tuesday: {n}+{k} | laps on both days: a+{n} | meters: b*{m}

animals | A farm has {n} cows, {m} times as many sheep as cows, and {k} goats fewer than sheep. How many animals has
it?
| n=5-30 m=2-6 k=3-20 | sheep: {n}*{m} | goats: a-{k} | cows and sheep: {n}+a | animals: c+b

two jobs | {who} works {n} hours for {m} dollars an hour and {k} hours for {p} dollars an hour, and spends half of the
money. How many dollars are left?
| n=3-20 m=8-25 k=3-20 p=8-25 | dollars of the first job: {n}*{m} | dollars of the second job: {k}*{p}
| dollars earned: a+b | dollars left: c/2

candles | Candles come in boxes of {n}, and a box costs {m} dollars. {who} burns {k} candles a day for {p} days. How
many dollars does {who} spend?
| n=4-20/2 m=3-12 k=2-8 p=3-30 | candles burned: {k}*{p} | boxes: a/{n} | dollars spent: b*{m}

pump | A pump brings {n} liters a minute into a tank, and {m} liters a minute leak out. The tank takes {k} liters and
already holds {p}. In how many minutes is it full?
| n=10-40 m=2-9 k=100-600/20 p=10-90/10 | liters gained in a minute: {n}-{m} | liters missing: {k}-{p} | minutes: b/a

library | A library has {n} shelves with {m} books each. People borrow {k} books and bring {p} back. How many books
are in the library then?
| n=5-30 m=10-40 k=20-90 p=5-60 | books at first: {n}*{m} | books after borrowing: a-{k} | books then: b+{p}

cabin | A group of {n} friends rents a cabin for {m} days at {k} dollars a day and buys food for {p} dollars. What
does each of them pay?
| n=3-9 m=2-9 k=30-120/10 p=20-150/10 | rent: {m}*{k} | price of all: a+{p} | dollars for each: b/{n}

cinema | A cinema sells {n} tickets at {m} dollars, and half as many children's tickets at {k} dollars. How many
dollars does it take in?
| n=20-120/2 m=8-15 k=3-7 | dollars from full tickets: {n}*{m} | children's tickets: {n}/2
| dollars from children's tickets: b*{k} | dollars in all: a+c

gyms | One gym costs {n} dollars to join and {m} dollars a month. Another costs nothing to join and {k} dollars a
month. How many dollars does {who} save in {p} months by taking the first?
| n=20-90/10 m=10-30 k=25-60 p=4-24 | months at the first gym: {m}*{p} | price of the first gym: a+{n}
| price of the other gym: {k}*{p} | dollars saved: c-b

cakes | A cake takes {n} dollars of flour and {m} dollars of fruit. {who} bakes {k} cakes a day for {p} days and sells
each for {q} dollars. How big is the profit?
| n=2-6 m=2-9 k=2-12 p=2-9 q=12-30 | cost of a cake: {n}+{m} | cakes: {k}*{p} | profit on a cake: {q}-a | profit: b*c
"""

FIVE_OR_SIX = """
fair | At a fair {who} sells {n} jars of jam at {m} dollars and {k} pies at {p} dollars. The stall costs {q} dollars,
and the rest is shared by {r} people. How many dollars does each get?
| n=5-30 m=3-9 k=5-20 p=6-15 q=20-80/5 r=2-6 | dollars for jam: {n}*{m} | dollars for pies: {k}*{p}
| dollars taken in: a+b | dollars without the stall's: c-{q} | dollars for each: d/{r}

bike | A bike costs {n} dollars. {who} has {m} dollars, earns {k} dollars a week and spends {p} of them. After {q}
weeks an aunt gives half of what is still missing. How many dollars are missing then?
| n=200-600/10 m=20-90 k=20-50 p=5-19 q=3-8 | dollars saved in a week: {k}-{p} | dollars saved: a*{q}
| dollars there: {m}+b | dollars missing: {n}-c | dollars missing then: d/2

orchard | An orchard has {n} rows of {m} trees, and a tree gives {k} kilograms of pears. The farmer keeps {p}
kilograms and fills crates of {q} kilograms with the rest. A crate sells for {r} dollars. How many dollars do the
crates bring?
| n=3-12 m=4-15 k=10-40/5 p=20-100/10 q=5-20/5 r=6-20 | trees: {n}*{m} | kilograms picked: a*{k}
| kilograms to sell: b-{p} | crates: c/{q} | dollars: d*{r}

office | An office buys {n} desks at {m} dollars and for each desk {k} chairs at {p} dollars. It gets {q} percent off
the whole. How many dollars does it pay?
| n=3-12 m=100-300/20 k=2-4 p=30-90/10 q=5-30/5 | price of the desks: {n}*{m} | chairs: {n}*{k}
| price of the chairs: b*{p} | price of all: a+c | dollars off: d*{q}/100 | dollars to pay: d-e

swimmer | {who} swims {n} lengths on Monday, {m} more than that on Tuesday, and on Wednesday twice as many as on
Tuesday. A length has {k} meters. How many meters are that in three days?
| n=8-40 m=2-20 k=25-50/25 | lengths on Tuesday: {n}+{m} | lengths on Wednesday: a*2
| lengths on Monday and Tuesday: {n}+a | lengths: c+b | meters: d*{k}

printers | One printer prints {n} pages a minute, and another prints {m} pages a minute more than that. Both run for
{k} minutes, then the first one alone for {p} minutes. How many pages do they print?
| n=8-30 m=2-15 k=3-20 p=2-15 | pages of the faster one in a minute: {n}+{m} | pages of both in a minute: {n}+a
| pages printed together: b*{k} | pages printed alone: {n}*{p} | pages: c+d

wedding | At a wedding there are {n} tables with {m} guests each. A meal costs {k} dollars a guest, flowers cost {p}
dollars a table, and the band costs {q} dollars. What does it all cost?
| n=4-15 m=4-10 k=12-40 p=10-40/5 q=200-900/50 | guests: {n}*{m} | price of the meals: a*{k}
| price of the flowers: {n}*{p} | meals and flowers: b+c | price of all: d+{q}

wheat | A field of {n} by {m} meters gives {k} kilograms of wheat on each square meter. Mice eat {p} percent of it,
and the rest goes into sacks of {q} kilograms. How many sacks are there?
| n=20-60/10 m=10-50/10 k=2-5 p=5-40/5 q=10-50/10 | square meters: {n}*{m} | kilograms of wheat: a*{k}
| kilograms eaten: b*{p}/100 | kilograms left: b-c | sacks: d/{q}

sweets | {who} has {n} sweets, {other} has {m} times as many, and their cousin has {k} fewer than {other}. They put
them together, eat {p}, and share the others equally among the three of them. How many sweets does each get?
| n=5-20 m=2-5 k=1-9 p=2-15 | sweets of the second one: {n}*{m} | sweets of the cousin: a-{k}
| sweets of the first two: {n}+a | sweets together: c+b | sweets left: d-{p} | sweets for each: e/3

zoo | At the zoo a child pays {k} dollars and an adult twice as much. A class of {n} children goes with {m} adults,
and the bus costs {p} dollars. The children share all of that equally. How many dollars does each child pay?
| n=10-30 m=2-5 k=4-12 p=60-300/10 | tickets of the children: {n}*{k} | ticket of an adult: {k}*2
| tickets of the adults: b*{m} | price of the tickets: a+c | price with the bus: d+{p} | dollars for each child: e/{n}

bricks | A wall has {n} layers of {m} bricks. {who} lays {k} bricks an hour for {p} hours; then {other} helps, and
together they lay {q} bricks an hour until it is done. How many hours does the wall take?
| n=8-30 m=20-60/5 k=20-50/5 p=2-6 q=40-90/5 | bricks in all: {n}*{m} | bricks laid alone: {k}*{p} | bricks left: a-b
| hours together: c/{q} | hours in all: d+{p}

ship | A ship brings {n} containers of {m} tons and {k} containers of {p} tons. Of that {q} tons go by train, and {r}
trucks share the rest equally. How many tons does a truck take?
| n=5-20 m=10-30 k=4-15 p=5-25 q=50-200/10 r=5-20 | tons in the first containers: {n}*{m}
| tons in the others: {k}*{p} | tons in all: a+b | tons for the trucks: c-{q} | tons for a truck: d/{r}

concert | A hall has {n} rows of {m} seats. For a concert {p} percent of the seats cost {k} dollars and the others {q}
dollars, and all are sold. How many dollars does it bring?
| n=10-40/5 m=10-30/2 p=10-60/10 k=30-80/5 q=10-25/5 | seats: {n}*{m} | dear seats: a*{p}/100
| dollars for dear seats: b*{k} | cheap seats: a-b | dollars for cheap seats: d*{q} | dollars in all: c+e

tournament | In a tournament {n} teams of {m} players play, and each player gets {k} bottles of water. A crate of {p}
bottles costs {q} dollars, and the town pays half of the price. How many dollars are left to pay?
| n=4-16 m=5-12 k=2-6 p=6-24/6 q=4-12 | players: {n}*{m} | bottles: a*{k} | crates: b/{p} | price: c*{q}
| dollars left to pay: d/2
"""
