"""Lists the English words of the `tiny` preset: who has something, and what. Each is one token of its tokenizer."""

from __future__ import annotations

ANIMALS = tuple(
    """
    ant badger bat bear beaver bee bison boar buffalo camel cat cheetah cobra condor cougar cow coyote crab crane crow
    deer dingo dog dolphin donkey dove duck eagle eel egret elk emu falcon ferret finch fly fox frog gazelle gecko
    gerbil gibbon giraffe goat goose gopher gorilla grouse gull hamster hare hawk heron hippo horse hyena ibex ibis
    iguana jackal jaguar jay kiwi koala lark lemur leopard lion lizard llama lobster lynx magpie mole monkey moose moth
    mouse mule newt ocelot octopus orca osprey otter owl oyster panda panther parrot pelican penguin pigeon pony puffin
    puma python quail rabbit raccoon ram rat raven robin salmon seal shark sheep shrew skunk sloth snail sparrow spider
    squid stork swan swift tapir tiger toad trout turtle
    """.split()
)

THINGS = tuple(
    """
    anchor apple basket bell blanket bottle broom brush bucket button camera candle cart chain chair clock coat comb
    compass cradle crown cup curtain desk drum fan feather fence flag flute fork glove guitar hammer hat helmet jacket
    jar kettle key kite knife ladder lamp lantern map mirror nail needle paddle pencil piano pillow pipe plate pump rope
    saddle shovel spoon
    """.split()
)
