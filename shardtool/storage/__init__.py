"""Places that hold data sets: local folders and object stores behave alike. The interface is `base.Place`."""
