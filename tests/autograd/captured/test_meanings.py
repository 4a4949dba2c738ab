"""What names meant, compared by identities: also where those are used again, or values are equal."""

from __future__ import annotations

from ag.autograd.captured.reads import Meanings, Name, Own


class Thing:
    k: float


def noted(*names: Name) -> Meanings:
    meanings = Meanings()
    for name in names:
        meanings.add(name)
    meanings.close()
    return meanings


def test_another_object_in_the_same_memory() -> None:
    things = [Thing() for _ in range(1000)]  # fill the memory around it, so that its own is what is handed out next
    place = {"k": things.pop(500)}
    meanings, number = noted(Name(place, "k", place["k"])), id(place["k"])
    assert meanings.change() is None
    place.clear()
    while id(things[-1]) != number and len(things) < 2000:
        things.append(Thing())
    place["k"] = things[-1]
    assert id(place["k"]) == number
    assert meanings.change() == "k was an object that is gone and is a Thing"


def test_an_equal_value() -> None:
    place = {"k": [1.5]}
    meanings = noted(Name(place, "k", place["k"]))
    place["k"] = [float("1.5")]
    assert meanings.change() is None
    place["k"] = [2.5]
    assert meanings.change() == "k was a list and is a list"


def test_a_place_that_is_gone() -> None:
    """With the step it is another one in each call; later nobody can read there as before."""
    thing, other = Thing(), Thing()
    thing.k = other.k = 1.0
    meanings = Meanings()
    for x in (thing, other):
        meanings.add(Name(Own(x), "k", 1.0))
    del x, other
    meanings.close()
    assert meanings.change() is None
    del thing
    assert meanings.change() == "k was 1.0 and is nothing"
