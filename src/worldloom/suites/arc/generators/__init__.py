"""Rule families of our own: tasks without end, drawn inside jit, each with the edits that solve it.

`grids` has what families are made of; `whole`, `objects` and `resized` have the families; `drawing`
gathers them and draws tasks.
"""
