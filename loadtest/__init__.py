"""`baton bench`: a load on any endpoint and its report; `baton verify`: whether it answers wrongly."""
