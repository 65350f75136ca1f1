"""The engine's HTTP edges: the OpenAI API on TCP and the admin API on a unix socket."""
