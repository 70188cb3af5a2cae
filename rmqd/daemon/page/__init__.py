"""The status page at `/`: rendered by jinja2 from the documents of the API, kept up to date by a small script.

The script (`static/page.js`) fetches the same page's main part again and again and changes only what differs, and draws
charts from /api/v1/history. Nothing is loaded from elsewhere, and the page's policy allows no script but that one.

    assets  the files below /static/, and the headers of the page
    render  StatusPage: templates and documents to HTML
    view    what the templates show: groups of queues, bars, keys of the configuration, sums
    words   numbers, durations and times as the page writes them
"""
