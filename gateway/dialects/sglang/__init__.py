"""SGLang's native API: POST /generate."""
