"""The demo: a shop clerk that learns, inside an unmodified agent library, which tool answers which question."""
