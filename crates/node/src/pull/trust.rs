//! Whose certificates are believed, and how connections are secured.

use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore};

/// Why there is nobody to believe.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TrustError {
    /// The variables by which people name authorities lead to none.
    #[error("SSL_CERT_FILE and SSL_CERT_DIR name no certificate of an authority{}", because(.problems))]
    NoneNamed {
        /// What could not be read.
        problems: Vec<String>,
    },
}

/// The authorities that this machine believes: those that `SSL_CERT_FILE` and `SSL_CERT_DIR` name, else
/// the system's, else Mozilla's, where a system has none.
///
/// # Errors
/// When the variables are set and lead to none.
pub(super) fn authorities() -> Result<RootCertStore, TrustError> {
    let is_named = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (believed, _) = roots.add_parsable_certificates(found.certs);
    if believed > 0 {
        return Ok(roots);
    }
    if is_named("SSL_CERT_FILE") || is_named("SSL_CERT_DIR") {
        let problems = found.errors.iter().map(ToString::to_string).collect();
        return Err(TrustError::NoneNamed { problems });
    }
    Ok(RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() })
}

/// TLS 1.3, or 1.2 where a server has no newer one.
pub(super) fn config(authorities: RootCertStore) -> ClientConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
        .expect("ring has the suites of both versions")
        .with_root_certificates(authorities)
        .with_no_client_auth()
}

fn because(problems: &[String]) -> String {
    problems.first().map_or(String::new(), |problem| format!(": {problem}"))
}
