// Sends requests to the gateway that served this page, with the key if there is one.

const STORED = "fetchwise-key";

/** Store a key until this tab is closed; it is sent only to this gateway. */
export function useKey(key) {
  sessionStorage.setItem(STORED, key.trim());
}

/** Send one request. The path is relative, so it stays on this host and below its prefix. */
export function send(path, { body, signal } = {}) {
  const key = sessionStorage.getItem(STORED);
  const headers = key ? { authorization: `Bearer ${key}` } : {};
  if (body === undefined) return fetch(path, { headers, signal });
  headers["content-type"] = "application/json";
  return fetch(path, { method: "POST", headers, body: JSON.stringify(body), signal });
}
