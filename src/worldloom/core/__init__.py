"""The pure core: types, protocols and the functions every suite is built from."""
