"""Random trees of qualified names, as the parameters of a model have them."""

from __future__ import annotations

from hypothesis import strategies as st

Tree = dict[str, "Tree"]


@st.composite
def name_trees(draw: st.DrawFn) -> list[str]:
    """Qualified names of the parameters of a random model: no name lies inside another."""
    segment = st.one_of(
        st.sampled_from(["0", "1", "2", "10", "fc", "norm", "weight", "bias"]),
        st.text(st.characters(exclude_characters=".", exclude_categories=["Cs"]), min_size=1, max_size=3),
    )
    tree: Tree = draw(
        st.recursive(st.just({}), lambda below: st.dictionaries(segment, below, min_size=1, max_size=4), max_leaves=20)
    )

    def leaves(node: Tree, prefix: str) -> list[str]:
        if not node:
            return [prefix]
        return [leaf for key, below in node.items() for leaf in leaves(below, f"{prefix}.{key}" if prefix else key)]

    return [name for name in leaves(tree, "") if name]
