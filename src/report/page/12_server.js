'use strict';

// Requests to the server of the page, or the data inside a page without one.
const Server = (() => {
  class Refused extends Error {
    constructor(message, status) {
      super(message);
      this.status = status;
    }
  }

  // The token of ?token=T. It is kept for this tab and taken out of the address, so that it does
  // not end up in a screenshot or a shared link.
  function takeToken() {
    const address = new URL(location.href);
    const given = address.searchParams.get('token');
    if (given !== null) {
      sessionStorage.setItem('kintsugi-token', given);
      address.searchParams.delete('token');
      history.replaceState(null, '', address.pathname + address.search + address.hash);
    }
    return sessionStorage.getItem('kintsugi-token');
  }

  class Connection {
    constructor() {
      this.token = takeToken();
      this.bytesReceived = 0;
      this.requests = 0;
    }
    async ask(path, pairs, signal) {
      const query = new URLSearchParams(pairs).toString();
      const headers = this.token ? {Authorization: 'Bearer ' + this.token} : {};
      const reply = await fetch(
          'api/' + path + (query ? '?' + query : ''), {headers, signal, cache: 'no-store'});
      const text = await reply.text();
      ++this.requests;
      this.bytesReceived += text.length;
      if (!reply.ok) throw new Refused(messageOf(text, reply), reply.status);
      return JSON.parse(text);
    }
  }
  function messageOf(text, reply) {
    try {
      return JSON.parse(text).error.message;
    } catch {
      return `the server answered ${reply.status} ${reply.statusText}`;
    }
  }

  // The JSON inside the page; null: there is none, and the page has a server.
  function embedded() {
    const element = document.getElementById('data');
    const text = element ? element.textContent.trim() : '';
    return text ? JSON.parse(text) : null;
  }
  // What to say when a request fails.
  function describe(error, command) {
    return error.status === 401 || error.status === 403 ?
        'The server asks for a token: open the address that `' + command +
            '` printed, with ?token=….' :
        error.message;
  }
  return {Connection, describe, embedded, Refused};
})();
