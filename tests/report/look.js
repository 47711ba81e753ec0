// Everything that is seen: within the screen unless it scrolls by itself, and legible. A colour is
// that of the text over the nearest background, thinned by the opacity of all that is around it.
// ignored: a selector of what is not looked at.
ignored => {
    const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
        .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    const parse = color => { const n = color.match(/[\d.]+/g).map(Number); return [n.slice(0, 3), n[3] ?? 1]; };
    const outside = [], faint = [], cut = [];
    const scrolling = node => {
        for (let at = node.parentElement; at; at = at.parentElement)
            if (at !== document.body && /auto|scroll/.test(getComputedStyle(at).overflowX)) return true;
        return node.closest(".scroll") !== null;
    };
    for (const node of document.body.querySelectorAll("*")) {
        const box = node.getBoundingClientRect(), style = getComputedStyle(node);
        if (!box.width || !box.height || style.visibility === "hidden" || node.closest(".said")) continue;
        if (ignored && node.closest(ignored)) continue;
        const scrolls = scrolling(node), name = `${node.tagName} ${node.textContent.slice(0, 40)}`;
        if (!scrolls && (box.left < -1 || box.right > innerWidth + 1)) outside.push(name);
        if (node.matches(".scroll") && style.overflowX !== "auto") cut.push(name);
        if (/hidden|clip/.test(style.overflowX) && node.matches("td,th,dd,pre,p,figcaption")
            && node.scrollWidth > node.clientWidth + 1) cut.push(name);
        if (![...node.childNodes].some(child => child.nodeType === 3 && child.data.trim())) continue;
        if (node.matches("style,script,title")) continue;
        let back = [255, 255, 255], opacity = 1;
        for (let at = node; at; at = at.parentElement) opacity *= +getComputedStyle(at).opacity;
        for (let at = node; at; at = at.parentElement) {
            const [color, alpha] = parse(getComputedStyle(at).backgroundColor);
            if (alpha > 0.99) { back = color; break; }
        }
        if (opacity === 0) continue;  // shown when it is pointed at
        const [ink, alpha] = parse(node.closest("svg") ? style.fill : style.color);
        const seen = ink.map((v, i) => back[i] + (v - back[i]) * alpha * opacity);
        const [dark, bright] = [light(seen), light(back)].sort((a, b) => a - b);
        const contrast = (bright + 0.05) / (dark + 0.05);
        if (contrast < 4.5) faint.push(`${name}: ${contrast.toFixed(2)}`);
    }
    // Words of different parts that lie on each other; what scrolls by itself may be hidden there.
    const words = [], overlaps = [], tall = document.createRange();
    for (const node of document.body.querySelectorAll("*")) {
        if (node.matches("style,script,title,option") || node.closest(".said")) continue;
        if (ignored && node.closest(ignored) || scrolling(node)) continue;
        let opacity = 1;
        for (let at = node; at; at = at.parentElement) opacity *= +getComputedStyle(at).opacity;
        if (getComputedStyle(node).visibility === "hidden" || opacity === 0) continue;
        for (const child of node.childNodes) {
            if (child.nodeType !== 3 || !child.data.trim()) continue;
            tall.selectNodeContents(child);
            for (const box of tall.getClientRects()) if (box.width > 1) words.push([child.data.trim().slice(0, 30), box]);
        }
    }
    for (const [i, [name, a]] of words.entries())
        for (const [other, b] of words.slice(i + 1)) {
            const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
            const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
            if (wide > 1 && high > 0.4 * Math.min(a.height, b.height)) overlaps.push(`${name} | ${other}`);
        }
    const shown = selector => [...document.querySelectorAll(selector)].map(node => node.getBoundingClientRect())
        .filter(box => box.width > 0 && box.height > 0);
    return {
        outside, faint, cut, overlaps, scroll: document.documentElement.scrollWidth,
        plots: shown(".plot canvas").map(box => [box.left, box.right, box.height]),
        drawings: shown("svg.wl-chart").length,
        small: [...document.querySelectorAll("svg.wl-chart")].filter(svg => svg.getBoundingClientRect().width > 0)
            .filter(svg => parseFloat(getComputedStyle(svg).fontSize)
                * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width < 10).length,
        wide: [...document.querySelectorAll(".scroll")].filter(box => box.scrollWidth > box.clientWidth + 1).length,
    };
}
