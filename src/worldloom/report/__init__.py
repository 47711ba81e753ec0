"""What a person sees of a run: pictures of worlds, charts, one self-contained page."""
