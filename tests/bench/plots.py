"""Line charts as SVG, written by hand."""

import math
from xml.sax.saxutils import escape

W, H, LEFT, RIGHT, TOP, BOTTOM = 720, 440, 74, 150, 44, 56
COLOURS = {"tcp": "#b3541e", "smcr": "#1f5fa8"}
DASHES = {"p99": "6 4"}


def _ticks(lo, hi, log):
    if log:
        a, b = math.floor(math.log10(lo)), math.ceil(math.log10(hi))
        return [10.0**e for e in range(a, b + 1)]
    step = 10 ** math.floor(math.log10(hi or 1))
    for k in (1, 0.5, 0.2):
        if hi / (step * k) >= 4:
            step *= k
            break
    return [step * i for i in range(int(hi / step) + 2)]


def _label(v, binary=False):
    if v == 0:
        return "0"
    if binary and v >= 1024 and v % 1024 == 0:
        return "%dMi" % (v // 1048576) if v % 1048576 == 0 else "%dKi" % (v // 1024)
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(v) >= limit:
            return "%g%s" % (v / limit, suffix)
    return "%g" % v


def chart(path, title, xlabel, ylabel, series, logx=False, logy=False, xticks=None):
    """series: [(name, colour, dash or None, [(x, y), ...])]. Points that a log axis cannot show are left out."""
    series = [(n, c, d, [(x, y) for x, y in pts if (x > 0 or not logx) and (y > 0 or not logy)]) for n, c, d, pts in series]
    points = [p for s in series for p in s[3]]
    if not points:
        return False
    xs, ys = [p[0] for p in points], [p[1] for p in points]
    xt = xticks or _ticks(min(xs), max(xs), logx)
    yt = _ticks(min(ys), max(ys), logy)
    x0, x1 = min(xt[0], min(xs)), max(xt[-1], max(xs))
    y0, y1 = (yt[0], yt[-1]) if logy else (0, max(yt[-1], max(ys)))

    def place(v, lo, hi, log, start, length):
        if log:
            v, lo, hi = math.log10(v), math.log10(lo), math.log10(hi)
        return start + (v - lo) / ((hi - lo) or 1) * length

    def px(v):
        return place(v, x0, x1, logx, LEFT, W - LEFT - RIGHT)

    def py(v):
        return place(v, y0, y1, logy, H - BOTTOM, -(H - TOP - BOTTOM))

    out = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">' % (W, H),
        '<rect width="%d" height="%d" fill="#ffffff"/>' % (W, H),
        '<text x="%d" y="24" font-size="15">%s</text>' % (LEFT, escape(title)),
    ]
    for v in xt:
        if x0 <= v <= x1:
            out.append('<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="#e4e4e4"/>' % (px(v), px(v), TOP, H - BOTTOM))
            out.append('<text x="%.1f" y="%d" text-anchor="middle">%s</text>' % (px(v), H - BOTTOM + 18, _label(v, xticks is not None)))
    for v in yt:
        if y0 <= v <= y1:
            out.append('<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="#e4e4e4"/>' % (LEFT, W - RIGHT, py(v), py(v)))
            out.append('<text x="%d" y="%.1f" text-anchor="end">%s</text>' % (LEFT - 6, py(v) + 4, _label(v)))
    out.append('<rect x="%d" y="%d" width="%d" height="%d" fill="none" stroke="#888888"/>' % (LEFT, TOP, W - LEFT - RIGHT, H - TOP - BOTTOM))
    out.append('<text x="%d" y="%d" text-anchor="middle">%s</text>' % ((LEFT + W - RIGHT) // 2, H - 14, escape(xlabel)))
    mid = (TOP + H - BOTTOM) // 2
    out.append('<text x="18" y="%d" text-anchor="middle" transform="rotate(-90 18 %d)">%s</text>' % (mid, mid, escape(ylabel)))
    for i, (name, colour, dash, pts) in enumerate(series):
        style = 'stroke="%s" stroke-width="2" fill="none"' % colour + (' stroke-dasharray="%s"' % dash if dash else "")
        if pts:
            out.append('<polyline points="%s" %s/>' % (" ".join("%.1f,%.1f" % (px(x), py(y)) for x, y in pts), style))
        if 0 < len(pts) <= 20:
            out += ['<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>' % (px(x), py(y), colour) for x, y in pts]
        y = TOP + 10 + 20 * i
        out.append('<line x1="%d" x2="%d" y1="%d" y2="%d" %s/>' % (W - RIGHT + 12, W - RIGHT + 40, y, y, style))
        out.append('<text x="%d" y="%d">%s</text>' % (W - RIGHT + 46, y + 4, escape(name)))
    out.append("</svg>")
    with open(path, "w") as f:
        f.write("\n".join(out) + "\n")
    return True


def distribution(path, title, hists):
    """Latency at each quantile; the axis is 1 / (1 - quantile), so that each decade is one more nine."""
    series = []
    for side, hist in hists.items():
        total, seen, pts = sum(n for _, n in hist), 0, []
        for v, n in hist:
            seen += n
            nines = total / max(total - seen, 0.5)
            if nines <= 1e5 and (not pts or nines > pts[-1][0] * 1.02):
                pts.append((nines, v / 1000.0))
        series.append((side, COLOURS[side], None, pts))
    return chart(path, title, "1 / (1 - quantile): 2 is the median, 100 is p99, 1000 is p99.9", "us", series, logx=True, logy=True)


def sweep(path, title, xlabel, ylabel, data, keys, x_of=None, logy=True):
    """data: [{"x": x, "tcp": {key: value}, "smcr": {...}}]; x_of maps a side's values to another x axis."""
    series = []
    for key in keys:
        for side in ("tcp", "smcr"):
            pts = []
            for d in data:
                v = d.get(side) or {}
                x = v.get(x_of) if x_of else d["x"]
                if v.get(key) is not None and x:
                    pts.append((x, v[key]))
            name = side if len(keys) == 1 else "%s %s" % (side, key.replace("_us", ""))
            series.append((name, COLOURS[side], DASHES.get(key.replace("_us", "")), pts))
    ticks = None if x_of else [d["x"] for d in data]
    return chart(path, title, xlabel, ylabel, series, logx=True, logy=logy, xticks=ticks)
