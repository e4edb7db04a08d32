"""The mathematics, as pure functions over plain arrays: nothing here knows rows, models or databases.

Each file holds one kind of function and a registry of its members; a recipe names a member. Another estimator, loss,
correction or normalisation is one function and one registry line.
"""
