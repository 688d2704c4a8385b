//! The page at `/`: a chat in one file, without anything from elsewhere.

use axum::body::Body;
use axum::http::header::{ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, REFERRER_POLICY};
use axum::http::{HeaderMap, HeaderValue};
use axum::response::Response;
use sha2::{Digest as _, Sha256};

use crate::base64::base64;
use crate::respond::with_type;

const PAGE: &str = include_str!("page.html");

/// What those who are no browser get, as Ollama's clients expect at this place.
const RUNNING: &str = "Motley is running";

/// The page for browsers, a line for everybody else. Neither says anything about models or keys.
pub(crate) async fn page(headers: HeaderMap) -> Response {
    let accepted = headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !accepted.contains("text/html") {
        return with_type(Body::from(RUNNING), "text/plain; charset=utf-8");
    }
    let mut response = with_type(Body::from(PAGE), "text/html; charset=utf-8");
    let headers = response.headers_mut();
    if let Ok(policy) = HeaderValue::from_str(&content_policy()) {
        headers.insert(CONTENT_SECURITY_POLICY, policy);
    }
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

/// Lets the page run its own script and style, speak to this server, and nothing else.
fn content_policy() -> String {
    let hash = |tag| base64(&Sha256::digest(inside(PAGE, tag)));
    format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; connect-src 'self'; \
         img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        hash("script"),
        hash("style"),
    )
}

/// What stands within the only element of a name.
fn inside<'p>(page: &'p str, tag: &str) -> &'p str {
    let begins = page.split_once(&format!("<{tag}>")).map_or("", |(_, rest)| rest);
    begins.split_once(&format!("</{tag}>")).map_or("", |(inside, _)| inside)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_one_script_and_one_style_and_nothing_from_elsewhere() {
        for tag in ["script", "style"] {
            assert_eq!(PAGE.matches(&format!("<{tag}")).count(), 1, "{tag}");
            assert!(inside(PAGE, tag).len() > 1000, "{tag}");
        }
        for foreign in ["http:", "https:", "src=", "@import", "innerHTML", "eval(", "onclick="] {
            assert!(!PAGE.contains(foreign), "{foreign}");
        }
    }

    #[test]
    fn hashes_are_of_what_stands_within() {
        assert_eq!(inside("<a><style>x</style>", "style"), "x");
        assert!(content_policy().contains("script-src 'sha256-"));
    }
}
