"""The HTTP server: routes in the shapes of the OpenAI API, over the engine's asynchronous client."""
