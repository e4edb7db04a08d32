"""Environments that harnesses live in: each of its own, at a pinned version, never Singletree's.

A harness brings hundreds of packages whose versions are its own affair, and some need another Node or Python than
this one. So each gets a folder under ``home.harness_home()``, and an adapter starts the program that is in there.
"""
