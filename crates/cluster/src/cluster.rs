//! Devices and links together.

use serde::{Deserialize, Serialize};

use crate::device::DeviceProfile;
use crate::document::{Document, FormatVersion};
use crate::field::{FieldError, FieldProblem, check_distinct, check_name, check_range};
use crate::limits::DEVICES_MAX;
use crate::link::{LinkMatrix, LinkSpec};
use crate::units::DeviceId;

/// A cluster as a file states it; [`Cluster`] is the checked form.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterSpec {
    /// Version of this form.
    pub version: FormatVersion,
    /// Name.
    pub name: String,
    /// Name of the device that must be the head (where the user sits); absent means free choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<String>,
    /// Links.
    #[serde(default)]
    pub links: LinkSpec,
    /// Devices, at least one, with distinct names.
    pub devices: Vec<DeviceProfile>,
}

/// Devices with distinct names and links that refer to them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "ClusterSpec", into = "ClusterSpec")]
pub struct Cluster {
    spec: ClusterSpec,
    head: Option<DeviceId>,
    links: LinkMatrix,
}

impl Cluster {
    /// Checks a specification.
    ///
    /// # Errors
    /// Names the field that is out of range, repeated or refers to an unknown device.
    pub fn new(spec: ClusterSpec) -> Result<Self, FieldError> {
        check_name("name", &spec.name)?;
        check_range("devices", spec.devices.len() as f64, (1.0, DEVICES_MAX as f64))?;
        let names: Vec<&str> = spec.devices.iter().map(|device| device.name.as_str()).collect();
        check_distinct("devices", names.iter().copied())?;
        let links = LinkMatrix::new(&spec.links, &names).map_err(|e| e.within("links"))?;
        let head = match &spec.head {
            None => None,
            Some(head) => {
                let index = names.iter().position(|name| name == head).ok_or_else(|| {
                    FieldError::new("head", FieldProblem::UnknownDevice(head.clone()))
                })?;
                Some(DeviceId::new(index as u16))
            }
        };
        Ok(Self { head, links, spec })
    }

    /// Name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// The devices; a [`DeviceId`] is a position in this list.
    #[must_use]
    pub fn devices(&self) -> &[DeviceProfile] {
        &self.spec.devices
    }

    /// All ids, rising.
    pub fn ids(&self) -> impl Iterator<Item = DeviceId> + use<> {
        (0..self.spec.devices.len() as u16).map(DeviceId::new)
    }

    /// One device.
    ///
    /// # Panics
    /// The id belongs to another cluster.
    #[must_use]
    pub fn device(&self, id: DeviceId) -> &DeviceProfile {
        &self.spec.devices[id.index()]
    }

    /// The device with this name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<DeviceId> {
        self.ids().find(|id| self.device(*id).name == name)
    }

    /// The device that must be the head, if any.
    #[must_use]
    pub fn head(&self) -> Option<DeviceId> {
        self.head
    }

    /// The links.
    #[must_use]
    pub fn links(&self) -> &LinkMatrix {
        &self.links
    }

    /// A copy to change and check again.
    #[must_use]
    pub fn to_spec(&self) -> ClusterSpec {
        self.spec.clone()
    }
}

impl Document for Cluster {
    const KIND: &'static str = "cluster";
}

impl TryFrom<ClusterSpec> for Cluster {
    type Error = FieldError;
    fn try_from(spec: ClusterSpec) -> Result<Self, FieldError> {
        Self::new(spec)
    }
}

impl From<Cluster> for ClusterSpec {
    fn from(cluster: Cluster) -> Self {
        cluster.spec
    }
}
