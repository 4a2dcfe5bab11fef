"""What several APIs share: fields, checks of bodies, and what /openapi.json says of them."""
