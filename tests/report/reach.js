// Everything that can be clicked, typed into or scrolled, numbered in data-reach; of radio buttons
// the one that the tab key comes to. ignored: a selector of what is reached in another way. What has no name for those who do not see it is wrong.
ignored => {
    const shown = node => node.getClientRects().length && getComputedStyle(node).visibility !== "hidden"
        && !node.closest("[inert],[hidden]") && !node.disabled;
    const scrolls = node => /auto|scroll/.test(getComputedStyle(node).overflowX)
        && node.scrollWidth > node.clientWidth + 1;
    const asked = "a[href],button,input,select,textarea,summary,[role=button],[role=switch],[role=slider],[onclick],.plot";
    const all = [...document.body.querySelectorAll("*")].filter(shown)
        .filter(node => !ignored || !node.closest(ignored))
        .filter(node => node.matches(asked) || scrolls(node));
    const groups = new Map();
    const chosen = all.filter(node => {
        if (node.type !== "radio") return true;
        const group = groups.get(node.name) ?? [...document.getElementsByName(node.name)];
        groups.set(node.name, group);
        return node === (group.find(other => other.checked) ?? group[0]);
    });
    const named = node => node.getAttribute("aria-label") || node.getAttribute("aria-labelledby")
        || node.title || node.textContent.trim() || node.labels?.length || node.placeholder
        || node.querySelector("[alt]:not([alt=''])") || scrolls(node);
    const describe = node => `${node.tagName}${node.id && "#" + node.id}.${node.className} ${node.textContent.trim().slice(0, 40)}`;
    document.querySelectorAll("[data-reach]").forEach(node => delete node.dataset.reach);
    chosen.forEach((node, i) => { node.dataset.reach = i; });
    return {
        count: chosen.length, names: chosen.map(describe),
        wrong: chosen.filter(node => !named(node)).map(node => `no name: ${describe(node)}`)
            .concat([...document.querySelectorAll("[tabindex]")].filter(node => node.tabIndex > 0).map(describe)),
    };
}
