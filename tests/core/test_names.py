"""What is said of a wrong name."""

from worldloom.core.names import listed, one_line, shown, suggest


def test_a_near_name_is_suggested():
    assert suggest("tresurehunt", {"treasurehunt": 1, "tag": 2}) == "did you mean 'treasurehunt'?"


def test_without_a_near_name_all_are_listed_in_their_order():
    assert suggest("chess", ["treasurehunt", "tag"]) == "known: treasurehunt, tag"


def test_long_lists_values_and_messages_are_cut_where_a_line_ends():
    many = [f"name{i}" for i in range(1000)]
    assert suggest("chess", many).startswith("known: name0, name1, name2, ")
    assert suggest("chess", many).endswith(", ... (1000 in all)")
    assert len(suggest("chess", many)) < 200
    assert listed(["a" * 500], 40).startswith("aaa")
    assert len(listed(["a" * 500, "b"], 40)) < 80
    assert shown("x" * 5000) == f"'{'x' * 27}...{'x' * 28}'"
    bomb = [["lol"] * 9]
    for _ in range(40):
        bomb = [bomb] * 9
    assert len(shown(bomb)) <= 80, "and it must come back"
    assert one_line("a\n  b") == "a b"
    cut = one_line("first " + "x" * 5000 + " last")
    assert len(cut) <= 300
    assert cut.startswith("first")
    assert cut.endswith("last")
