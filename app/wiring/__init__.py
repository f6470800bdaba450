"""Connects the packages: opens every part from the settings and hands it to those that need it.

Only `cli` imports it.
"""
