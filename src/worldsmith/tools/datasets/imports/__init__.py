"""Import of videos and captions in common layouts into dataset files of `data/clips/`."""
