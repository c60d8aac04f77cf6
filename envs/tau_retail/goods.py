"""Tables of products and of customers' names and places, from which envs/tau_retail/shop.py draws."""

# name, a typical price | option: values | ...
PRODUCTS = """
Alarm Clock, 34 | color: black, white, mint | display: digits, hands | power: battery, USB-C
Armchair, 410 | cover: leather, velvet, linen | color: brown, grey, green | legs: wood, metal
Backpack, 96 | color: black, navy, olive | size: small, medium, large | closure: zip, roll top
Bath Towel, 27 | color: white, sand, teal | size: hand, bath, sauna | weave: terry, waffle
Bed Frame, 620 | size: single, double, king | material: oak, pine, steel | storage: drawers, none
Bicycle Helmet, 71 | color: white, red, black | size: S, M, L | light: built-in, none
Blender, 128 | color: black, cream, steel | jug: glass, plastic | power: 500 W, 900 W, 1200 W
Board Game, 44 | theme: trains, castles, space | players: 2, 2-4, 3-6 | language: English, Spanish
Bread Knife, 39 | blade: 20 cm, 23 cm, 26 cm | handle: walnut, plastic, steel
Camping Tent, 265 | persons: 2, 3, 4 | season: summer, three seasons, winter | color: green, orange
Card Holder, 33 | material: leather, cork, aluminium | color: tan, black, plum
Coffee Grinder, 87 | type: blade, burr | capacity: 60 g, 120 g, 240 g | color: black, silver
Cooking Pot, 68 | volume: 2 l, 4 l, 6 l | material: steel, copper, enamel | lid: glass, metal
Cycling Gloves, 36 | fingers: short, long | size: S, M, L, XL | color: black, yellow
Desk Fan, 48 | color: white, black, copper | blades: 3, 5 | control: knob, remote
Desk Lamp, 74 | color: black, white, brass | light: warm, cold, adjustable | foot: stand, clamp
Door Mat, 25 | size: 40x60, 50x80, 60x90 | material: coir, rubber | pattern: plain, stripes, dots
Down Jacket, 189 | color: black, blue, rust | size: S, M, L, XL | hood: fixed, removable
Drum Practice Pad, 42 | diameter: 6 inch, 8 inch, 12 inch | surface: rubber, mesh | mount: stand, table
Ear Muffs, 23 | color: grey, red, cream | band: metal, plastic | lining: fleece, wool
Electric Drill, 142 | voltage: 12 V, 18 V | battery: one, two, none | case: bag, box
Electric Shaver, 118 | heads: 2, 3, 5 | use: dry, wet and dry | color: black, blue
Espresso Cups, 31 | set of: 2, 4, 6 | material: porcelain, glass | color: white, terracotta, blue
Fishing Rod, 134 | length: 1.8 m, 2.4 m, 3 m | material: carbon, fibreglass | parts: 2, 3, 5
Floor Lamp, 156 | color: black, white, brass | shade: paper, linen, metal | switch: foot, cord
Flower Pot, 29 | diameter: 15 cm, 20 cm, 30 cm | material: clay, concrete, zinc | saucer: with, without
Garden Shears, 52 | blade: straight, wavy | handle: wood, aluminium | length: short, long, telescopic
Guitar Strings, 17 | gauge: light, medium, heavy | material: nylon, bronze, steel | coating: with, without
Hammock, 83 | persons: 1, 2 | material: cotton, nylon | color: sand, sea blue, rainbow
Headphones, 214 | fit: over-ear, on-ear, in-ear | connection: wired, wireless | color: black, white, rose
Hiking Poles, 77 | material: aluminium, carbon | grip: cork, foam, rubber | folding: yes, no
Kitchen Scale, 35 | limit: 3 kg, 5 kg, 10 kg | surface: glass, steel | color: black, white
Laptop Sleeve, 38 | size: 13 inch, 14 inch, 16 inch | material: felt, neoprene, leather | color: grey, black
Lunch Box, 26 | compartments: 1, 2, 3 | material: steel, plastic | color: green, pink, blue
Mechanical Keyboard, 132 | switches: clicky, tactile, linear | size: full, 75%, 60% | light: white, RGB, none
Microphone, 164 | type: condenser, dynamic | connection: USB, XLR | stand: with, without | color: black, silver
Picnic Blanket, 41 | size: 130x150, 150x200, 200x200 | back: waterproof, plain | pattern: checked, striped
Pillow, 47 | filling: down, foam, latex | size: 40x80, 50x70, 80x80 | firmness: soft, medium, firm
Portable Speaker, 109 | color: black, red, sand | battery: 8 h, 14 h, 24 h | waterproof: yes, no
Projector, 455 | resolution: 720p, 1080p, 4K | lamp: LED, laser | color: white, black
Rain Boots, 58 | size: 37, 39, 41, 43, 45 | color: yellow, navy, green | height: ankle, knee
Rice Cooker, 92 | cups: 3, 6, 10 | pot: coated, steel | color: white, red
Running Shoes, 126 | size: 38, 40, 42, 44, 46 | color: white, black, coral | surface: road, trail
Sewing Machine, 288 | stitches: 12, 40, 100 | drive: electric, treadle | case: hard, soft
Sleeping Bag, 137 | comfort: +10 C, 0 C, -10 C | shape: mummy, blanket | zip: left, right
Sun Hat, 32 | material: straw, cotton, linen | brim: narrow, wide | color: natural, black, white
Table Lamp, 66 | shade: glass, paper, brass | height: 25 cm, 40 cm, 55 cm | dimmer: yes, no
Travel Suitcase, 179 | size: cabin, medium, large | shell: hard, soft | color: black, silver, red
Wall Mirror, 103 | shape: round, oval, square | frame: oak, black metal, none | width: 40 cm, 60 cm, 80 cm
Wool Scarf, 45 | color: grey, burgundy, forest green | length: 150 cm, 180 cm | weave: plain, herringbone
"""
FIRST_NAMES = """Ada Alma Amir Anton Bea Boris Carla Cyrus Dana Diego Edda Elio Emre Fay Felix Gita Goran Hana Hugo Ida
Ilya Ines Jonas June Kaito Kira Lars Leila Luca Maja Milo Nadia Nils Nora Omar Paula Quinn Ravi Rosa Samir Selma Tariq
Tessa Ugo Vera Wanda Xenia Yara Yusuf Zoe"""
LAST_NAMES = """Abara Bauer Castro Dahl Endo Fischer Gallo Hansen Ito Jansen Kaya Lopez Moretti Novak Okafor Petrov
Quist Rahman Santos Tanaka Ueda Varga Weber Xu Yilmaz Zhou Almeida Berg Cohen Duarte Ekman Ferrari Grant Hoang Ivanov
Joshi Keller Lindgren Mensah Nakamura"""
STREETS = (
    "Ash Street, Birch Lane, Canal Road, Dover Street, East Avenue, Fountain Street, Garden Road, Harbor Lane, "
    "Ivy Street, Juniper Drive, King Street, Laurel Avenue, Mill Road, North Street, Orchard Lane, Poplar Avenue, "
    "Quarry Road, River Drive, Station Street, Tower Lane, Union Avenue, Valley Road, Walnut Drive, West Street"
)
CITIES = (  # city, state, the first digits of its zip codes
    *(("Albany", "NY", "122"), ("Atlanta", "GA", "303"), ("Boise", "ID", "837"), ("Boston", "MA", "021")),
    *(("Denver", "CO", "802"), ("Detroit", "MI", "482"), ("El Paso", "TX", "799"), ("Fresno", "CA", "937")),
    *(("Houston", "TX", "770"), ("Madison", "WI", "537"), ("Memphis", "TN", "381"), ("Miami", "FL", "331")),
    *(("Newark", "NJ", "071"), ("Omaha", "NE", "681"), ("Portland", "OR", "972"), ("Reno", "NV", "895")),
    *(("Salem", "OR", "973"), ("Seattle", "WA", "981"), ("Toledo", "OH", "436"), ("Tucson", "AZ", "857")),
)
