"""What people have becomes the data set file of `data/clips/`: a file a layout, one that cuts, one that writes."""
