"""What is said of a wrong name."""

from worldloom.core.names import suggest


def test_a_near_name_is_suggested():
    assert suggest("tresurehunt", {"treasurehunt": 1, "tag": 2}) == "did you mean 'treasurehunt'?"


def test_without_a_near_name_all_are_listed_in_their_order():
    assert suggest("chess", ["treasurehunt", "tag"]) == "known: treasurehunt, tag"
