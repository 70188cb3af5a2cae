"""The status page at `/`: rendered by jinja2 from the documents of the API, and updated by a small script.

The script (`static/page.js`) polls the page's main part, updates the differences, and draws charts from
/api/v1/history. Nothing is loaded from other servers, and the page's policy allows only this script.

    assets  the files below /static/, and the headers of the page
    render  StatusPage: templates and documents to HTML
    view    the data of the templates: groups of queues, bars, keys of the configuration, sums
    words   the page's formats of numbers, durations and times
"""
