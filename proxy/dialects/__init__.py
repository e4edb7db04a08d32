"""One module per API that harnesses speak: each decodes to the hub (chat-completions terms) and encodes from it."""
