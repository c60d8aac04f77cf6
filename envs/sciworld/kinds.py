"""Tables of SciWorld's things: substances, kinds and their properties, descriptions, names."""

STATES = ("solid", "liquid", "gas")

# name: melting point, boiling point, burning point, and its names in the three states
MATTER = {
    "water": (0, 100, None, ("ice", "water", "steam")),
    "air": (-210, -194, None, ("solid air", "liquid air", "air")),
    "orange juice": (0, 100, None, ("solid orange juice", "orange juice", "gaseous orange juice")),
    "apple juice": (0, 100, None, ("solid apple juice", "apple juice", "gaseous apple juice")),
    "chocolate": (35, 500, 150, ("chocolate", "liquid chocolate", "gaseous chocolate")),
    "marshmallow": (45, 500, 150, ("marshmallow", "liquid marshmallow", "gaseous marshmallow")),
    "ice cream": (0, 500, 150, ("ice cream", "liquid ice cream", "gaseous ice cream")),
    "soap": (60, 500, 200, ("soap", "liquid soap", "gaseous soap")),
    "wood": (1000, 2000, 250, ("wood", "liquid wood", "gaseous wood")),
    "mercury": (-39, 357, None, ("solid mercury", "mercury", "gaseous mercury")),
    "gallium": (30, 2400, None, ("gallium", "liquid gallium", "gaseous gallium")),
    "caesium": (28, 671, None, ("caesium", "liquid caesium", "gaseous caesium")),
    "tin": (232, 2602, None, ("tin", "liquid tin", "gaseous tin")),
    "lead": (327, 1749, None, ("lead", "liquid lead", "gaseous lead")),
    "salt water": (-2, 102, None, ("solid salt water", "salt water", "gaseous salt water")),
    "soapy water": (0, 100, None, ("solid soapy water", "soapy water", "gaseous soapy water")),
    **{f"{paint} paint": (-9, 150, None, (f"solid {paint} paint", f"{paint} paint", f"gaseous {paint} paint"))
       for paint in ("red", "yellow", "blue", "green", "violet", "orange", "brown", "yellow-orange", "red-orange",
                     "violet-red", "blue-violet", "green-blue", "yellow-green")},
}  # fmt: skip

# form and flags: names. fixed: cannot be moved. lid: can be opened. off: can be switched. dead: only power turns it on.
# bare: a thermometer reads nothing from it. conducts: conducts electricity
KINDS = {
    name.strip(): (form.split()[0], frozenset(form.split()[1:]))
    for line in """
        seat: bed, chair, couch, mattress
        table: counter, desk, table
        cabinet lid: bee hive, closet, cupboard, large cupboard
        cooler lid fixed off bare: freezer, fridge, ultra low temperature freezer
        oven lid fixed off bare: blast furnace, oven
        stove fixed off bare: stove
        basin fixed off: bathtub, sink
        toilet fixed off: toilet
        drawer lid: drawer
        vessel: bowl, ceramic cup, glass cup, jug, paper cup, plastic cup, tin cup, wood cup, book shelf, flower pot
        vessel: fire pit, fountain, hole, seed jar
        vessel conducts: metal pot
        vessel lid: glass jar
        vessel bare: box
        vessel fixed bare: inventory
        picture: drawing, finger painting, painting, picture
        plain: pillow, shovel, wood block, metal fork, plastic fork, aluminum foil
        plain: paper clip, unknown substance, soil
        plain bare: agent
        ground: ground
        tool: axe, lighter
        plain edible bare: almond, apple, banana, bread, cashew, jam, orange, peanut, potato
        plain edible bare: apricot, avocado, cherry, grapefruit, lemon, peach, pear
        plain edible bare: mixed nuts, sandwich, smores
        plain edible: apple juice, chocolate, ice cream, marshmallow, orange juice, paint
        substance: acetic acid, air, caesium, gallium, lead, mercury, salt water, soap, soapy water, sodium acetate
        substance: sodium bicarbonate, sodium chloride, sugar, sugar water, tin, water, wood
        thermometer: thermometer
        stopwatch off bare: stopwatch
        recipe: recipe
        plane bare: inclined plane
        battery bare conducts: battery
        wire conducts: wire
        part dead bare conducts: electric buzzer, electric motor, light bulb, solar panel
        part off bare conducts: gas generator, switch
        living bare: animal, plant
        flower: flower
        pollen: pollen
    """.strip().splitlines()
    for form, _, names in [line.partition(":")]
    for name in names.split(",")
}
READS = {  # descriptions other than "a NAME"
    **{name: "an {}" for name in ("avocado", "axe", "grapefruit", "orange")},
    **{name: "the {}" for name in ("agent", "ground")},
    **{name: "A {}" for name in ("aluminum foil", "metal fork", "plastic fork", "paper clip")},
    **dict.fromkeys(("almond", "bread", "cashew", "chocolate", "ice cream", "marshmallow", "peanut", "smores"), "{}"),
    **dict.fromkeys(("apple juice", "orange juice", "paint", "mixed nuts", "soil", "unknown substance"), "{}"),
    **{"pollen": "{}", "apple": "a red {}", "apricot": "a orange {}", "jam": "red {}", "pillow": "a white {}"},
}
CALLED = {  # more names; a vessel is also called by the last word of its name and by its content
    **dict.fromkeys(("light bulb",), ("light", "light bulb")),
    **dict.fromkeys(("solar panel", "gas generator"), ("generator",)),
    **dict.fromkeys(("wire", "switch"), ("component",)),
    **{"wood block": ("block",), "pillow": ("white pillow",), "bowl": ("wood bowl",)},
    **{"unknown substance": ("unknown substance",)},
}
CONTAINERS = ("seat", "table", "cabinet", "cooler", "oven", "stove", "basin", "toilet", "drawer", "vessel", "plane")
CONTAINERS += ("ground", "room", "flower")
SEALED = ("tool", "thermometer", "stopwatch")  # containers that stay closed
TEMPERATURE = 10.0  # initial temperature unless a task sets another
