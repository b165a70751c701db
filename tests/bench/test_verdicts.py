#!/usr/bin/env python3
"""What the bench calls met, missed and within the spread, on made-up samples: every verdict can fail."""

import unittest

import limits
import report  # noqa: F401  (before sweeps, which names rows)
import rows_counts  # noqa: F401
import stats
import sweeps
from row import ROWS


def of_pairs(*gains):
    return {"tcp": [{"r": 100.0, "_pair": i} for i in range(len(gains))], "smcr": [{"r": 100.0 * g, "_pair": i} for i, g in enumerate(gains)]}


def series(*points):
    """Points of sweep_idle as (PSS, set-up time, share off TCP)."""
    one = {"rss_kib": 1.0, "pss_kib": 1.0, "setup_us": 1.0}
    return [{"x": 625 << i, "failed": [], "early": 0.0, "share_off_tcp": share, "tcp": one, "smcr": dict(one, pss_kib=pss, setup_us=setup)}
            for i, (pss, setup, share) in enumerate(points)]


class Verdicts(unittest.TestCase):
    RATE = stats.Metric("r", "1/s", "high", ("ratio", 1.0))

    def verdict(self, *gains):
        r = stats.summarise(self.RATE, of_pairs(*gains))
        return r["met"], r["near"]

    def test_within_the_spread_needs_a_quarter_of_the_pairs(self):
        self.assertEqual(self.verdict(1.1, 1.0, 0.9), (True, False))
        self.assertEqual(self.verdict(0.5, 0.6, 0.7, 0.8, 0.7, 0.6, 1.5), (False, False))
        self.assertEqual(self.verdict(0.9, 0.9, 1.05), (False, False))
        self.assertEqual(self.verdict(0.9, 0.95, 0.99, 1.01, 1.02), (False, True))
        self.assertEqual(self.verdict(0.7, 1.2), (False, False))

    def test_pairs_are_those_of_one_repetition(self):
        samples = of_pairs(0.9, 1.1, 1.2)
        samples["tcp"].pop(0)
        self.assertAlmostEqual(stats.summarise(self.RATE, samples)["gain_min"], 1.1)

    def test_no_sample_of_smcr_is_a_miss(self):
        samples = of_pairs(1.0, 1.0, 1.0)
        samples["smcr"] = []
        r = stats.summarise(self.RATE, samples)
        self.assertEqual((r["met"], r["near"]), (False, False))

    def test_share_off_tcp(self):
        self.assertEqual([stats.verdict_of_share(s, 0.95)["met"] for s in (0.96, 0.94, None)], [True, False, False])

    def test_cpu_time_is_less_where_it_is_faster(self):
        def goal(gain):
            return stats.cpu_metric([{"gain": gain, "unit": "us", "metric": "p50_us"}], {"cpu_ratio": 1.1}, False)

        self.assertFalse(goal(1.2).met(1.0, 1.1))
        self.assertTrue(goal(1.0).met(1.0, 1.1))
        self.assertFalse(goal(1.0).met(1.0, 1.4))

    def test_growth(self):
        flat = [(1, 1, 0.3)] * 4

        def met(*last):
            return [d["met"] for d in sweeps.growth("sweep_idle", series(*flat, last))]

        self.assertEqual(met(1, 1, 0.3), [True, True, True])
        # All that one of the last half costs, not what one of them all does: that rises by 20 %, this by 40.
        self.assertEqual(met(1.2, 1, 0.3), [False, True, True])
        self.assertEqual(met(1, 2.5, 0.3), [True, False, True])
        self.assertEqual(met(1, 1, 0.1), [True, True, False])
        self.assertEqual(met(1, 1, None), [True, True, False])

    def test_every_counted_row_of_instructions_has_a_limit(self):
        names = {n for n in ROWS if n.startswith("instr_")}
        self.assertEqual(names - set(limits.ADDED), set())
        self.assertEqual(set(limits.ADDED) - set(ROWS), set())


if __name__ == "__main__":
    unittest.main()
