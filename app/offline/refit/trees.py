"""Boosted trees between LightGBM and the gateway: its models as arrays, and these arrays on many rows at once."""

from collections.abc import Mapping
from typing import Any

import lightgbm as lgb
import numpy as np

from app.core.heads import Trees
from app.offline.table import Floats

_CHUNK = 4_096


def to_trees(booster: lgb.Booster) -> Trees:
    """A LightGBM model as arrays. Where train had no missing value of a feature, LightGBM takes a missing one for 0."""
    nodes: list[tuple[int, float, int, int, bool, float]] = []

    def add(node: Mapping[str, Any]) -> int:
        place = len(nodes)
        if "split_feature" not in node:
            nodes.append((-1, 0.0, -1, -1, False, float(node["leaf_value"])))
            return place
        threshold = float(node["threshold"])
        missing_left = bool(node["default_left"]) if node["missing_type"] == "NaN" else threshold >= 0.0
        nodes.append((0, 0.0, 0, 0, False, 0.0))
        left, right = add(node["left_child"]), add(node["right_child"])
        value = float(node["internal_value"])
        nodes[place] = (int(node["split_feature"]), threshold, left, right, missing_left, value)
        return place

    roots = tuple(add(tree["tree_structure"]) for tree in booster.dump_model()["tree_info"])
    feature, threshold, left, right, missing_left, value = zip(*nodes, strict=True)
    return Trees(roots, feature, threshold, left, right, missing_left, value)


def score_many(trees: Trees, rows: Floats) -> Floats:
    """The log-odds of each row; NaN is a missing value."""
    total = np.zeros(len(rows))
    feature, threshold = np.array(trees.feature, np.intp), np.array(trees.threshold)
    left, right = np.array(trees.left, np.intp), np.array(trees.right, np.intp)
    missing_left, value = np.array(trees.missing_left), np.array(trees.value)
    for start in range(0, len(rows) if trees.roots else 0, _CHUNK):
        some = rows[start : start + _CHUNK]
        node = np.tile(np.array(trees.roots, np.intp), (len(some), 1))
        while (inner := feature[node] >= 0).any():
            x = some[np.arange(len(some))[:, None], np.maximum(feature[node], 0)]
            goes_left = np.where(np.isnan(x), missing_left[node], x <= threshold[node])
            node = np.where(inner, np.where(goes_left, left[node], right[node]), node)
        total[start : start + _CHUNK] = value[node].sum(axis=1)
    return total
