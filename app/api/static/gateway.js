// Talks to the gateway that served this page, with a key where one was given.

const KEPT = "fetchwise-key";

/** Keep a key for as long as this tab is open; nobody but this gateway ever gets it. */
export function useKey(key) {
  sessionStorage.setItem(KEPT, key.trim());
}

/** Send one request; relative, so that it stays on this host and under its prefix. */
export function send(path, { body, signal } = {}) {
  const key = sessionStorage.getItem(KEPT);
  const headers = key ? { authorization: `Bearer ${key}` } : {};
  if (body === undefined) return fetch(path, { headers, signal });
  headers["content-type"] = "application/json";
  return fetch(path, { method: "POST", headers, body: JSON.stringify(body), signal });
}
