// Shows times in the browser's zone and names it; UTC stays on hover. Without script the page names UTC.
const DAY_AND_TIME = new Intl.DateTimeFormat("en-GB", {
  day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit", hourCycle: "h23",
});
const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
// A locale has abbreviations of its own zones only, and offsets for all others.
const NAMES = ["en-GB", "en-US", "en-AU", "en-IN", "en-ZA"].map((locale) => new Intl.DateTimeFormat(locale, { timeZoneName: "short" }));
const MINUTE = 60_000;

function zone(at) {
  const names = NAMES.map((each) => each.formatToParts(at).find(({ type }) => type === "timeZoneName").value);
  return names.find((name) => !/^(GMT|UTC)[+-]/.test(name)) ?? names[0].replace("GMT", "UTC");
}

globalThis.localTime = {
  zone,
  text: (at) => `${DAY_AND_TIME.format(at)} ${zone(at)}`,
  clock: (at) => `${CLOCK.format(at)} ${zone(at)}`,
  offset: (at) => -new Date(at).getTimezoneOffset() * MINUTE,
  rewrite(root) {
    for (const time of root.querySelectorAll("time[datetime]")) {
      const at = new Date(time.getAttribute("datetime"));
      const text = Number.isNaN(at.getTime()) ? time.textContent : this.text(at);
      if (time.textContent !== text) time.textContent = text;
    }
  },
};
globalThis.localTime.rewrite(document);
