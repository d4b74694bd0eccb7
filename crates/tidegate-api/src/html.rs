//! The little HTML that the server writes itself: everything is escaped, nothing is loaded from elsewhere.

use std::fmt::{self, Write};

use axum::body::Body;
use axum::response::Response;
use http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use http::{HeaderName, HeaderValue};

/// Text that is shown as it is, whatever it holds.
pub(crate) struct Escaped<'a>(pub(crate) &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#14232e;--soft:#5d7280;--line:#d5dfe5;--paper:#fbfcfd;--tide:#0b6e8a;--bar:#cfe6ee}\
@media(prefers-color-scheme:dark){:root{--ink:#e3ecf1;--soft:#92a7b4;--line:#2a3b47;--paper:#0f1a22;--tide:#5cc0dc;--bar:#1d4553}}\
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:72rem;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.3rem;color:var(--tide)}h2{font-size:1rem;margin-top:2rem}a{color:var(--tide)}\
table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.3rem .8rem .3rem 0;border-bottom:1px solid var(--line)}\
th{color:var(--soft);font-weight:500}.n{text-align:right;font-variant-numeric:tabular-nums}code,pre{font-family:ui-monospace,monospace;font-size:.9em}\
pre{white-space:pre-wrap}.soft{color:var(--soft)}progress{width:100%;accent-color:var(--tide)}";

/// A page of this server. `body` is HTML; `refresh` reloads it every so many seconds. The style is the only thing
/// that the page's policy allows, and it is named by a nonce of this answer.
pub(crate) fn page(title: &str, body: &str, refresh: Option<u32>) -> Response {
    let nonce = format!("{:032x}", rand::random::<u128>());
    let refresh = refresh.map(|s| format!("<meta http-equiv=\"refresh\" content=\"{s}\">")).unwrap_or_default();
    let html = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>{}</title>\
         <meta name=\"viewport\" content=\"width=device-width\">{refresh}<style nonce=\"{nonce}\">{STYLE}</style></head>\
         <body>{body}</body></html>",
        Escaped(title)
    );
    let policy = format!(
        "default-src 'none'; style-src 'nonce-{nonce}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    let mut response = Response::new(Body::from(html));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    if let Ok(policy) = HeaderValue::from_str(&policy) {
        headers.insert(CONTENT_SECURITY_POLICY, policy);
    }
    headers.insert(HeaderName::from_static("x-frame-options"), HeaderValue::from_static("DENY"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_text_is_markup() {
        let text = "<script>alert('x') && \"y\"</script>\u{1F30A}";
        let escaped = Escaped(text).to_string();
        assert_eq!(escaped, "&lt;script&gt;alert(&#39;x&#39;) &amp;&amp; &quot;y&quot;&lt;/script&gt;\u{1F30A}");
    }
}
