// Behaviour of all pages: theme, copies, confirmations, live parts, keys. Pages work without it, except that nothing refreshes itself.

const root = document.documentElement;

function currentTheme() {
  return root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
}

function announce(text) {
  const place = document.querySelector(".flashes");
  if (!place) return;
  const line = document.createElement("p");
  line.className = "flash note";
  line.textContent = text;
  place.append(line);
  setTimeout(() => line.remove(), 3000);
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button, a");
  if (!button) return;
  if ("themeSwitch" in button.dataset) {
    const theme = currentTheme() === "dark" ? "light" : "dark";
    root.dataset.theme = theme;
    localStorage.setItem("theme", theme);
  } else if (button.dataset.copy !== undefined) {
    try {
      await navigator.clipboard.writeText(button.dataset.copy);
      announce("Copied.");
    } catch {
      announce("The browser does not allow copying.");
    }
  } else if (button.dataset.open) {
    document.getElementById(button.dataset.open)?.showModal();
  } else if ("close" in button.dataset) {
    button.closest("dialog")?.close();
  }
});

// A form that deletes something asks first: the name has to be typed into its field.
document.addEventListener("input", (event) => {
  const field = event.target;
  if (field.dataset.mustBe === undefined) return;
  const button = field.form?.querySelector("button.danger");
  if (button) button.disabled = field.value !== field.dataset.mustBe;
});

// A select that changes what is shown sends its form at once.
document.addEventListener("change", (event) => {
  if ("submits" in event.target.dataset) event.target.form?.requestSubmit();
});

// A form for searching leaves empty fields out of the address.
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.method !== "get") return;
  for (const field of form.elements) {
    if (field.name && field.value === "" && field.tagName !== "BUTTON") field.disabled = true;
  }
  setTimeout(() => { for (const field of form.elements) field.disabled = false; });
});

// Live parts: replaced by a new rendering, unless the page is hidden or somebody works in the part.
for (const part of document.querySelectorAll("[data-live]")) {
  const every = Number(part.dataset.every) || 5000;
  const refresh = async () => {
    const inside = part.contains(document.activeElement) && document.activeElement !== part;
    const selected = document.getSelection()?.toString();
    if (!document.hidden && !inside && !selected) {
      try {
        const answer = await fetch(part.dataset.live + (part.dataset.live.includes("?") ? "" : location.search), { headers: { accept: "text/html" } });
        if (answer.ok && !answer.redirected) part.innerHTML = await answer.text();
        part.classList.toggle("stale", !answer.ok);
      } catch {
        part.classList.add("stale");
      }
    }
    setTimeout(refresh, every);
  };
  setTimeout(refresh, every);
}

// Keys: / goes to the search field, g and a letter to a page.
const pages = { o: "/", t: "/topics", m: "/topics", g: "/groups", c: "/cluster", x: "/transactions", l: "/timelines", p: "/pipelines", f: "/flight", a: "/access" };
let before = "";
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select, dialog")) return;
  if (event.key === "/") {
    const field = document.querySelector("input[type=search]");
    if (field) {
      field.focus();
      field.select();
      event.preventDefault();
    }
  } else if (before === "g" && pages[event.key] && document.querySelector(`nav a[href="${pages[event.key]}"]`)) {
    location.href = pages[event.key];
  }
  before = event.key;
});
