//! What a device says of itself, as it travels.

use motley_cluster::{DeviceProfile, from_json};
use motley_ring::ProfileJson;
use serde_json::json;

/// A device's profile with its tables of the model.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Surveyed {
    /// Whether it was measured. What somebody wrote down is believed as it is: it is not corrected
    /// by what is measured later.
    pub(crate) measured: bool,
    pub(crate) device: DeviceProfile,
}

/// Why a profile is not believed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ProfileRefused {
    /// A part of it is missing, unknown, of another kind or absurd.
    #[error("its profile is wrong: {0}")]
    Field(String),
    /// It is too long for a message.
    #[error("its profile is too long to be told: {0}")]
    TooLong(String),
}

impl Surveyed {
    /// The form that travels.
    ///
    /// # Errors
    /// When it is longer than a message may be.
    pub(crate) fn to_json(&self) -> Result<ProfileJson, ProfileRefused> {
        let json = json!({ "measured": self.measured, "device": self.device });
        ProfileJson::new(json).map_err(|error| ProfileRefused::TooLong(error.to_string()))
    }

    /// Judges what came from another device.
    ///
    /// # Errors
    /// Names the field that is not believed.
    pub(crate) fn from_json(told: &ProfileJson) -> Result<Self, ProfileRefused> {
        let told = told.json();
        let field = |what: &str| ProfileRefused::Field(what.to_owned());
        let entries = told.as_object().ok_or_else(|| field("it is no object"))?;
        if let Some(unknown) = entries.keys().find(|key| !["measured", "device"].contains(&&***key))
        {
            let shown: String = unknown.chars().take(32).collect();
            return Err(ProfileRefused::Field(format!("`{shown}` is no field of it")));
        }
        let measured = entries
            .get("measured")
            .and_then(serde_json::Value::as_bool)
            .ok_or_else(|| field("measured: must be true or false"))?;
        let device = entries.get("device").ok_or_else(|| field("device: is missing"))?;
        let device = from_json(&device.to_string()).map_err(|error| {
            // Where in the text it stands is of no use to whoever reads.
            let problem = error.problem.split(" at line ").next().unwrap_or_default();
            ProfileRefused::Field(match error.field.as_str() {
                "." => problem.to_owned(),
                path => format!("{path}: {problem}"),
            })
        })?;
        Ok(Self { measured, device })
    }
}
