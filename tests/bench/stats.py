"""Medians, spread, quantiles of sparse histograms, ratios and goals."""

import statistics


def median(values):
    return statistics.median(values) if values else None


def quantile(hist, q):
    """The value below which the share `q` of a sparse histogram [[value, count], ...] lies."""
    total = sum(n for _, n in hist)
    if not total:
        return None
    want, seen = q * total, 0
    for v, n in hist:
        seen += n
        if seen >= want:
            return v
    return hist[-1][0]


def upper_quartile(values):
    return statistics.quantiles(values, n=4, method="inclusive")[2] if len(values) > 1 else None


def merge(hists):
    out = {}
    for h in hists:
        for v, n in h:
            out[v] = out.get(v, 0) + n
    return [[v, out[v]] for v in sorted(out)]


class Metric:
    """One number of a row.

    better: "low" or "high"; the ratio is always the gain, so that more than 1 is better than TCP.
    goal: None, or one of
      ("ratio", r[, limit])  gain of at least r, or (with limit) smcr at or below limit
      ("delta", d)           smcr - TCP at most d
      ("max", m)             smcr at most m
    """

    def __init__(self, key, unit, better, goal=None, title=None, pooled=None, text=None):
        self.key, self.unit, self.better, self.goal, self.pooled, self.text = key, unit, better, goal, pooled, text
        self.title = title or key

    def gain(self, tcp, smcr):
        if tcp is None or smcr is None:
            return None
        a, b = (tcp, smcr) if self.better == "low" else (smcr, tcp)
        return a / b if b else None

    def goal_text(self):
        if not self.goal or self.text:
            return self.text or ""
        kind, value = self.goal[:2]
        if kind == "ratio":
            text = "%gx" % value
            return text + " or %g %s" % (self.goal[2], self.unit) if len(self.goal) > 2 else text
        if kind == "delta":
            return "+%g %s" % (value, self.unit) if value else "no more"
        return ("at most %g %s" % (value, self.unit)).strip()

    def met(self, tcp, smcr):
        """True, False, or None where there is no goal or no number."""
        if not self.goal or smcr is None:
            return None
        kind, value = self.goal[:2]
        if kind == "max":
            return smcr <= value
        if tcp is None:
            return None
        if kind == "delta":
            return smcr - tcp <= value
        g = self.gain(tcp, smcr)
        return (g is not None and g >= value) or (len(self.goal) > 2 and smcr <= self.goal[2])


def summarise(metric, samples):
    """{tcp: {median, min, max}, smcr: ..., gain, gain_min, gain_max, goal, met} from {side: [sample, ...]}."""
    out = {"metric": metric.key, "title": metric.title, "unit": metric.unit, "better": metric.better}
    lists = {}
    for side in ("tcp", "smcr"):
        there = [s for s in samples.get(side, []) if s.get(metric.key) is not None]
        values = [s[metric.key] for s in there]
        lists[side] = {s.get("_pair", i): s[metric.key] for i, s in enumerate(there)}
        if not values:
            out[side] = None
            continue
        mid = median(values)
        if metric.pooled is not None:
            mid = quantile(merge([s["_hist"] for s in samples[side] if s.get("_hist")]), metric.pooled) / 1000.0
        out[side] = {"median": mid, "min": min(values), "max": max(values), "values": values}
    t = out["tcp"] and out["tcp"]["median"]
    s = out["smcr"] and out["smcr"]["median"]
    out["gain"] = metric.gain(t, s)
    both = sorted(set(lists["tcp"]) & set(lists["smcr"]))
    pairs = [g for g in (metric.gain(lists["tcp"][i], lists["smcr"][i]) for i in both) if g is not None]
    out["gain_min"], out["gain_max"] = (min(pairs), max(pairs)) if pairs else (None, None)
    out["goal"] = metric.goal_text()
    out["met"] = metric.met(t, s)
    if metric.goal and s is None and t is not None:
        out["met"] = False  # no sample of smcr worked
    # Missed, but a quarter of the pairs of runs and more meet the goal: the runs differ by more than what is missing.
    # One lucky pair is no excuse, nor are fewer than three pairs.
    out["near"] = (out["met"] is False and metric.goal[0] == "ratio" and len(pairs) >= 3 and upper_quartile(pairs) >= metric.goal[1])
    return out


def side_facts(samples):
    """Per side: loopback traffic, CPU time and sleeps per operation (medians), and what others used meanwhile."""
    out = {}
    for side in ("tcp", "smcr"):
        facts = {}
        for key, name in (
            ("_lo_payload", "lo_payload_per_op"),
            ("_lo_packets", "lo_packets_per_op"),
            ("_lo_bytes", "lo_bytes_per_op"),
            ("_cpu_s", "cpu_us_per_op"),
            ("_sleeps", "sleeps_per_op"),
        ):
            values = [s[key] / s["_all"] for s in samples.get(side, []) if s.get("_all") and s.get(key) is not None]
            if values:
                facts[name] = median(values) * (1e6 if key == "_cpu_s" else 1)
        outside = [s["_outside"] for s in samples.get(side, []) if "_outside" in s]
        if outside:
            facts["outside_cpu_share"] = max(outside)
        out[side] = facts
    t, s = out["tcp"].get("lo_payload_per_op"), out["smcr"].get("lo_payload_per_op")
    out["share_off_tcp"] = max(0.0, min(1.0, 1 - s / t)) if t and s is not None else None
    t, s = out["tcp"].get("cpu_us_per_op"), out["smcr"].get("cpu_us_per_op")
    out["cpu_ratio"] = s / t if t and s is not None else None
    return out


SLACK = 1.05  # a gain of less than this is none


def cpu_metric(metrics, facts, per_kib):
    """The general goal of CPU time per request or per KiB: less than TCP's in a row that is faster, else at most 1.3 times."""
    first = next((m for m in metrics if m["gain"] is not None and m["unit"] not in ("", "KiB", "ticks")), None)
    faster = first is not None and first["gain"] > SLACK
    if facts["cpu_ratio"] is None or any(m["metric"] == "cpu_us_op" for m in metrics):
        return None
    return Metric("_cpu_us", "us", "low", ("ratio", 1 if faster else 1 / 1.3), "CPU per " + ("KiB" if per_kib else "op"),
                  text="less (faster)" if faster else "at most 1.3 times")


def verdict_of_share(share, least):
    """A row whose payload stays on TCP where it should not is a miss, whatever its rates are."""
    return {"metric": "share_off_tcp", "title": "payload off TCP", "unit": "", "better": "high", "tcp": None,
            "smcr": None if share is None else {"median": share, "min": share, "max": share, "values": [share]},
            "gain": None, "gain_min": None, "gain_max": None, "goal": "at least %g %%" % (least * 100),
            "met": share is not None and share >= least, "near": False}
