"""Holds the words and sentences of small RULER needle tasks, which the tiny worlds of several methods share.

`tokentrue data world memagent --out FOLDER` writes the lists, and `tokentrue data ruler` makes the tasks from them.
"""

KEYS = """
    anchor apple arrow badge basin basket beacon bell bench blade blanket boat bottle bowl bracket branch brick bridge
    broom brush bucket button cabin cable camera candle canoe canvas card carpet cart castle chain chair chest clock
    coat coin compass cord cradle crane crown cup curtain cushion desk dish door drawer drum engine fan feather fence
    flag flask flute fork frame garden gate glass globe glove guitar hammer handle harbor hat helmet hook horn hose
    jacket jar kettle kite knife ladder lamp lantern lens letter lever lock map marble mask mast mirror mug nail
    needle net oar oven paddle paper pencil piano pillow pipe plate pocket pot pump purse rail ribbon ring rope ruler
    saddle sail scarf shelf shell shield shoe shovel spoon
    """.split()
VALUES = """
    acorn almond amber ant badger banana barley basil bean bear beaver bee beet berry birch bison bronze butter cactus
    camel carrot cat cedar celery cheese cherry chili clam clay clover cobalt cobra cocoa copper coral corn cotton cow
    crab cricket crow daisy deer dog dolphin donkey dove duck eagle eel elm falcon fern fig finch fox frog garlic
    ginger goat goose granite grape hawk hazel heron honey horse iris iron ivory ivy jade jasmine kiwi lemon lettuce
    lilac lily lime lion lizard llama lotus lynx mango maple marigold melon mint mole moose moss moth mouse mustard
    nettle nickel nutmeg oak oat olive onion opal orange orchid otter owl oyster panda parrot peach pear pepper pigeon
    pine plum pony poppy potato quartz
    """.split()
NOISE = """
    about after air all along also always away bad because before big both bring but call can close cold come could
    day deep did down each early even every far fast few find first for from gave good great had half hand hard have
    he help her high him his home how if in into it just keep kind know last late left life light like line little
    long look made make many may men might more most move much must near never new next night not now of off old on
    once only open or other our out over own part people place point put quick rain right road room run said same saw
    say school sea see she should show side slow small snow so some soon stand still stop street such take tell than
    that their them then they thing this those time to told too took town tree try turn two under until up us use very
    wait walk wall want warm was water way well went were what when where which while white who why wide wind winter
    with work world would year you young
    """.split()
"""The three lists are disjoint."""

QUESTION = "What is the special magic word for {key} mentioned in the provided text?"
NEEDLE = "One of the special magic words for {key} is: {value}."
RULER_NOISE = ("The grass is green.", "The sky is blue.", "The sun is yellow.", "Here we go.", "There and back again.")
