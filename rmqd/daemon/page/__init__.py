"""The status page at `/`: rendered by jinja2 from the documents of the API, and updated by a small script.

The script (`static/page.js`) polls the page's main part, updates the elements that changed, and draws charts from
/api/v1/history. Nothing is loaded from other servers, and the Content-Security-Policy allows only this script.
"""
